"""Message brokers behind one interface (`spi`), one folder per broker."""
