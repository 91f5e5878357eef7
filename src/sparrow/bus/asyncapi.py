"""What an application hears and says, as an AsyncAPI 3 document.

```python
document = asyncapi(bus, publishes={"order.created": Order})
```

Subscriptions are known to the bus; what is published is not declared anywhere, so it is said here. Payloads are described
by JSON Schema, from the same annotations by which they are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic

from sparrow.bus import headers as h
from sparrow.bus.calling import item_of
from sparrow.bus.declaring import Subscription
from sparrow.bus.names import is_pattern, wire_name
from sparrow.bus.payload import mentions_pydantic
from sparrow.bus.renaming import Naming, fields_of, taken_apart
from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.bus.bus import EventBus

VERSION = "3.0.0"
JSON = "application/json"
_REFERENCE = "#/components/schemas/{name}"
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9._-]")
