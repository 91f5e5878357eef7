"""Message stores: the interface (`spi`), its two engines (`log`, `sql`), and copies between stores (`copy`)."""
