"""The transactions of the store, by theme: each method hands one unit to the driver."""
