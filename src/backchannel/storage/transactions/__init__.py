"""Domain transactions, each written once as plain functions over a `Tx`; both drivers run them."""
