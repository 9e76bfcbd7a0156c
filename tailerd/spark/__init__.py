"""The same journey on Spark: the format("tailerd") data source and supervised queries."""
