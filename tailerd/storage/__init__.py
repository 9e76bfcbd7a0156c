"""Bytes: one small contract (`base`) and its implementations; vendor errors end here."""
