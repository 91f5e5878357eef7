"""The promotion of a follower: it takes the place of its RocketMQ master, and nothing is lost.

The order matters:

1. The master refuses sends (`startAcceptSendRequestTimeStamp` in the far future), and we copy what it has. A producer
   gets an error and tries again; nothing that was acknowledged is missing.
2. The master is fenced: it refuses pulls (`brokerPermission` 0) and gives its id 0 away (`brokerId`), so that clients
   leave it and no name server, not even 4.9's, takes it for the master again.
3. The metadata is copied, *then* the end of the log is asked, and the log is copied up to it. So the log has every
   message that an offset, or the progress of a delay level, has passed. Later commits at the master are lost, and mean
   delivery again.
4. The state file says `promoting`. From here on a start does not follow any more; `finish_promotion` imports the
   metadata, again and from the beginning if it was interrupted.

A failure before step 4 restores the settings of the master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from sparrow.broker.log_broker import LEADER_TERM_MARK
from sparrow.broker.pop.state.log import JOURNAL_START_MARK
from sparrow.model.errors import Refused, SparrowError, Unavailable
from sparrow.model.protocol import REVIVE_TOPIC_PREFIX
from sparrow.model.queue import Queue
from sparrow.replication.rocketmq import metadata as config_files
from sparrow.replication.rocketmq.follower_state import FollowerState, load_follower_state, save_follower_state
from sparrow.replication.rocketmq.log_copy import LogCopy
from sparrow.replication.rocketmq.master_client import RocketMQMasterClient
from sparrow.replication.rocketmq.popped_messages import PoppedMessages, find_popped
from sparrow.settings import LogSettings
from sparrow.store.log import LogStore
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import StoreLayout

log = logging.getLogger(__name__)

REFUSE_SENDS = {"startAcceptSendRequestTimeStamp": "4102444800000"}
"""2100-01-01. RocketMQ checks it for every send; `brokerPermission` only for ordered topics."""
FENCE = {"brokerPermission": "0", "brokerId": "999"}
"""An id that no slave has: as a slave it would not register its topics."""
FIRST_TERM = 1
"""`stateVersion` of our registration. Apache's masters have 0."""
_CATCH_UP_S = 60.0

PLAN = (
    "switch sends off at the master (startAcceptSendRequestTimeStamp)",
    "copy the rest of its log",
    "fence the master (brokerPermission=0, brokerId=999), and let consumers commit their offsets",
    "copy the metadata once more, and the log up to its end",
    "import the metadata, and register as broker 0 with stateVersion 1",
)


async def run_promotion(
    path: Path,
    store: LogStore,
    copy: LogCopy,
    master: RocketMQMasterClient,
    *,
    offset_wait_s: float,
    on_step: Callable[[str], None],
) -> None:
    """Take steps 1 to 4. Raises an error, with the master as it was, if the log cannot be copied to its end."""
    state = load_follower_state(path)
    assert state is not None, "a follower has a state file"
    settings = await master.configuration()
    if not state.master_settings:  # else an earlier promotion was interrupted, and these are not the originals
        originals = {name: settings[name] for name in (*REFUSE_SENDS, *FENCE)}
        state = msgspec.structs.replace(state, master_settings=originals)
        save_follower_state(path, state)
    try:
        on_step(PLAN[0])
        await master.configure(REFUSE_SENDS)
        on_step(PLAN[1])
        await _catch_up(copy)
        await _catch_up(copy)
        on_step(PLAN[2])
        await master.configure(FENCE)
        await asyncio.sleep(offset_wait_s)
        on_step(PLAN[3])
        metadata = await master.metadata()
        end = await _catch_up(copy)
        popped = await find_in_flight(store, state.cluster, metadata)
        lowest = {(each.topic, each.group, each.queue_id): each.first for each in popped}
        metadata = config_files.rewind_offsets(metadata, lowest)
        await copy.stop()
        end = max(end, int(store.written))
        await asyncio.to_thread(config_files.save_metadata, path, metadata)
        save_follower_state(path, msgspec.structs.replace(state, phase="promoting", end=end))
    except BaseException:
        try:
            await asyncio.shield(restore_master(path, master))
        except SparrowError as error:
            log.error(
                "the master %(master)s could not be restored: %(error)s; set %(settings)s with mqadmin "
                "updateBrokerConfig, or promote again",
                {"master": master.address, "error": error, "settings": state.master_settings},
            )
        raise


async def restore_master(path: Path, master: RocketMQMasterClient) -> bool:
    """Undo what a promotion has changed at the master. Return whether there was anything to undo."""
    state = load_follower_state(path)
    if state is None or state.phase != "following" or not state.master_settings:
        return False
    await master.configure(state.master_settings)
    save_follower_state(path, msgspec.structs.replace(state, master_settings={}))
    return True


async def find_in_flight(store: LogStore, cluster: str, metadata: dict[str, bytes]) -> list[PoppedMessages]:
    """Return the messages that consumers have popped from the master and not acknowledged."""
    offsets = config_files.table_of(metadata, "consumerOffset.json", "offsetTable")
    wheel_ms = int.from_bytes(metadata.get("timercheck", b"")[:8], "big")
    return await find_popped(store, cluster, offsets, wheel_ms=wheel_ms)


async def _catch_up(copy: LogCopy) -> int:
    """Copy up to where the master's log ends now, and return that offset."""
    position = await copy.update_position()
    try:
        async with asyncio.timeout(_CATCH_UP_S):
            await copy.reach(position.end)
    except TimeoutError as cause:
        raise Unavailable(
            f"the log was copied to {copy.end} of {position.end} in {_CATCH_UP_S:.0f} s"
            f"{f' ({copy.error})' if copy.error else ''}: the master accepts sends again; promote later"
        ) from cause
    return position.end


def kept_settings(path: Path, log_settings: LogSettings) -> LogSettings:
    """Return the settings with the segment size of the directory, which is that of the master."""
    layout = files.load(path / files.LAYOUT_FILE, StoreLayout)
    return log_settings if layout is None else log_settings.model_copy(update={"segment_bytes": layout.segment_bytes})


def promote_without_master(path: Path, log_settings: LogSettings) -> FollowerState:
    """Begin the promotion of a stopped follower whose master is gone, with what it has copied. Blocks.

    Messages that the master acknowledged and had not sent are lost; offsets are those of the last copy of the metadata.
    """
    state = load_follower_state(path)
    if state is None or state.phase != "following":
        raise Refused(f"{path} does not follow a RocketMQ master: name the data folder of a follower with --data")
    if not (path / config_files.CONFIG_FOLDER / "topics.json").exists():
        raise Refused(f"{path} has no metadata of its master yet: it cannot be promoted without it")
    with LogStore(path, kept_settings(path, log_settings), follows=True) as store:
        state = msgspec.structs.replace(state, phase="promoting", end=int(store.written))
    save_follower_state(path, state)
    return state


def finish_promotion(path: Path, log_settings: LogSettings) -> FollowerState:
    """Make an ordinary store of a directory whose promotion has begun, and return its state. Blocks.

    Raises `Refused` for a directory that still follows.
    """
    state = load_follower_state(path)
    assert state is not None, "the directory never followed"
    if state.phase == "promoted":
        return state
    if state.phase == "following":
        raise Refused(
            f"{path} follows the RocketMQ master {state.master}, and a broker would add records of its own: start it "
            f"with --follow-rocketmq {state.master}, and take over with `sparrow cluster promote`"
        )
    with LogStore(path, log_settings, follows=True) as store:
        if store.written < state.end:
            raise Refused(
                f"the log of {path} ends at {store.written}, before {state.end}, where it was promoted: it has lost "
                "bytes. Follow the master again, into an empty directory"
            )
        store.replica.truncate(state.end)
    with LogStore(path, log_settings) as store:  # imports RocketMQ's configuration files
        journal = Queue(REVIVE_TOPIC_PREFIX + state.cluster, 0)
        store.marks.put_nowait(JOURNAL_START_MARK, int(store.bounds_nowait(journal).end))
        store.marks.put_nowait(LEADER_TERM_MARK, FIRST_TERM)
    state = msgspec.structs.replace(state, phase="promoted")
    save_follower_state(path, state)
    return state
