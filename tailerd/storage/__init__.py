"""Object stores: the contract (`base`) and its implementations, which map vendor errors."""
