"""Message stores: the interface (`spi`), its two engines (`log`, `sql`), and copies between stores (`copy`)."""

from sparrow.extras import require

require("numpy", "pyarrow", "pydantic_settings", extra="server", for_="sparrow.store")
