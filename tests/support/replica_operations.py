"""The simulated replica set with an operator: members come and go, `min` changes, and leaders hand over, under faults.

The operator writes to the coordinator directly, like `sparrow cluster`, from what it read some time ago.
"""

from __future__ import annotations

import argparse

from tests.support.replica_simulation import Coordinator, SimulatedReplica, Simulation

from sparrow.model.errors import Refused
from sparrow.replication.core import member_changes
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.output import CoordinatorCall, HandOver
from sparrow.replication.core.replica import Replica

MEMBERS_MAX = 6
OPERATIONS = ("add", "add", "remove", "remove", "min", "transfer", "transfer", "transfer", "stop")


class OperatedCoordinator(Coordinator):
    """A coordinator that an operator writes to as well."""

    def apply(self, call: CoordinatorCall, replica_id: int, now: int) -> bool:
        if not isinstance(call, HandOver):
            return super().apply(call, replica_id, now)
        holder = self.leader.create_revision if self.leader is not None else 0
        if call.state_revision != self.state_revision or call.leader_revision != holder:
            return False
        self.leader = None
        return self.write(call.state)

    def write(self, state: ReplicaSetState) -> bool:
        self.revision += 1
        self.state, self.state_revision = state, self.revision
        return True


class OperatedSimulation(Simulation):
    """A replica set whose operator does something now and then."""

    def __init__(self, seed: int, *, replicas: int = 3) -> None:
        super().__init__(seed, replicas=replicas)
        addresses = self.coordinator.addresses
        self.coordinator: OperatedCoordinator = OperatedCoordinator(self.coordinator.state)
        self.coordinator.addresses = addresses
        self.is_over = False
        """Nobody operates the set any more."""
        self.removed: dict[int, SimulatedReplica] = {}
        self.operations = {"add": 0, "remove": 0, "min": 0, "transfer": 0, "stop": 0}

    @classmethod
    def of_seed(cls, seed: int) -> OperatedSimulation:
        """Return a simulation whose size depends on the seed, too."""
        return cls(seed, replicas=(3, 2, 5, 1)[seed % 4])

    def fault(self) -> None:
        """Let the operator do something, or let something go wrong."""
        if self.rng.random() < 0.5:
            self.operate(self.rng.choice(OPERATIONS))
        else:
            super().fault()

    def operate(self, kind: str) -> None:
        """Carry one operation out, some of them with what was read before the last ones."""
        if kind in ("transfer", "stop"):
            self._ask_a_replica(kind)
            return
        coordinator = self.coordinator
        state, revision = coordinator.state, coordinator.state_revision
        number = self.rng.randint(1, MEMBERS_MAX)
        try:
            if kind == "add":
                changed = member_changes.add_member(state, number, self.make_id())
            elif kind == "remove":
                changed = member_changes.remove_member(state, number, self.make_id())
            else:
                needed = self.rng.choice((None, self.rng.randint(1, len(state.members))))
                changed = member_changes.set_min(state, needed, self.make_id())
        except Refused:
            return

        def write() -> None:
            if self.is_over or coordinator.state_revision != revision or not self._has_survivor(changed):
                return
            self.note(f"operator: {kind} {number}: members {changed.members}, min {changed.min_in_sync}")
            self.operations[kind] += 1
            coordinator.write(changed)
            self._notify()
            if kind == "add":
                # Its disk may be one that it had before it was removed, or an empty one.
                known = self.removed.pop(number, None)
                replica = known if known is not None else SimulatedReplica(number, self.make_id())
                self.replicas[number] = replica
                if replica.core is None:
                    self.start(replica)
            elif kind == "remove":
                self.removed[number] = self.replicas[number]

        self.after(1 + self.rng.randrange(self.faults.delay_ms), write)

    def _has_survivor(self, state: ReplicaSetState) -> bool:
        """Return whether a disk with everything remains: an operator looks at that before a change."""
        return any(
            one.disk.incarnation in (state.in_sync.get(number), state.eligible.get(number))
            for number, one in self.replicas.items()
            if not one.disk.is_damaged
        )

    def _running(self, replica_id: int) -> tuple[SimulatedReplica, Replica] | None:
        return super()._running(replica_id) if replica_id in self.replicas else None

    def _ask_a_replica(self, kind: str) -> None:
        leading = [
            one
            for one in self.replicas.values()
            if one.core is not None and one.core.leader is not None and not one.is_paused
        ]
        if not leading:
            return
        replica = self.rng.choice(leading)
        assert replica.core is not None
        follower = self.rng.choice((None, *self.replicas))
        if kind == "transfer":
            if replica.core.begin_transfer(follower, self.now + 2000) is None:
                self.note(f"operator: replica {replica.replica_id} hands over to {follower or 'any'}")
                self.operations[kind] += 1
        elif follower is not None and follower != replica.replica_id:
            self.operations[kind] += 1
            self._carry_out(replica, replica.core.leaves(follower, self.now))
            self.kill(self.replicas[follower])

    def settle(self) -> None:
        """Stop the removed replicas: the others must agree without them."""
        self.is_over = True
        for number in list(self.removed):
            replica = self.replicas.pop(number)
            if replica.core is not None:
                self.kill(replica)
        super().settle()

    def _agree(self) -> bool:
        state = self.coordinator.state
        return set(state.members) == set(self.replicas) and super()._agree()


def main() -> None:
    """Replay one seed and print its transcript."""
    arguments = argparse.ArgumentParser(description="Replay a simulated replica set with an operator.")
    arguments.add_argument("--seed", type=int, required=True)
    simulation = OperatedSimulation.of_seed(arguments.parse_args().seed)
    try:
        simulation.run()
    finally:
        print("\n".join(simulation.transcript))
    print(f"{simulation.steps} steps, {len(simulation.acknowledged)} acknowledged writes, no promise broken")


if __name__ == "__main__":
    main()
