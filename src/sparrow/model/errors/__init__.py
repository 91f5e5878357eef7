"""Every error that Sparrow raises on purpose, grouped by who has to act.

An error holds values. Its text is made from them, and says what happened and what to do.
"""

from sparrow.model.errors.base import (
    PartialSend,
    ProtocolError,
    SparrowError,
    UnreadableBody,
)
from sparrow.model.errors.refused import (
    BadRequest,
    GroupRequired,
    IllegalMessage,
    IllegalName,
    NotPermitted,
    OffsetConflict,
    Refused,
    TooLarge,
    TooManyMessages,
    UnknownGroup,
    UnknownOffset,
    UnknownTopic,
    WrongServer,
)
from sparrow.model.errors.settings import (
    CannotListen,
    MissingExtra,
    SettingsError,
)
from sparrow.model.errors.storage import (
    CorruptRecord,
    DataLost,
    StorageError,
    StoreFailed,
    StoreFull,
    StoreInUse,
)
from sparrow.model.errors.unavailable import (
    Busy,
    Closed,
    ConnectionLost,
    FlushTimeout,
    NoFollower,
    NoMaster,
    NoNameServer,
    NotEnoughReplicas,
    NotLeader,
    ReplicationTimeout,
    RequestTimeout,
    Unavailable,
)

__all__ = [
    "BadRequest",
    "Busy",
    "CannotListen",
    "Closed",
    "ConnectionLost",
    "CorruptRecord",
    "DataLost",
    "FlushTimeout",
    "GroupRequired",
    "IllegalMessage",
    "IllegalName",
    "MissingExtra",
    "NoFollower",
    "NoMaster",
    "NoNameServer",
    "NotEnoughReplicas",
    "NotLeader",
    "NotPermitted",
    "OffsetConflict",
    "PartialSend",
    "ProtocolError",
    "Refused",
    "ReplicationTimeout",
    "RequestTimeout",
    "SettingsError",
    "SparrowError",
    "StorageError",
    "StoreFailed",
    "StoreFull",
    "StoreInUse",
    "TooLarge",
    "TooManyMessages",
    "Unavailable",
    "UnknownGroup",
    "UnknownOffset",
    "UnknownTopic",
    "UnreadableBody",
    "WrongServer",
]
