"""How events travel: one small file a broker behind one Protocol (`spi`)."""
