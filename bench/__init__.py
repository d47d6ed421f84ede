"""What it costs, measured: `make bench`. The rows are in `rows.py`."""
