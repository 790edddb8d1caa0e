"""The digits and the network that notebooks 43 and 44 quantise; the calls and the arithmetic are on the pages."""
