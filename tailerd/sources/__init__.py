"""Tables you can ask for changes: `base` is the contract, each format has its folder."""
