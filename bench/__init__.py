"""The measured costs of the gateway: `make bench`. The rows are in `rows.py`."""
