"""The digits and the network that notebooks 10 and 10b quantise; the calls and the arithmetic are on the pages."""
