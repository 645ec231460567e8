"""The status of waiting work: states, reasons, warnings and advice."""
