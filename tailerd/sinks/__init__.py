"""Where change rows are delivered: `base` is the contract, one module or folder per sink."""
