"""Where messages are kept: what a store promises (`spi`), and the engines that keep the promise."""
