"""Its presence lets the tests in folders here import the modules that they share, which lie beside it."""
