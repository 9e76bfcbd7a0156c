"""The only folder that wires objects together: from a configuration to running pipelines."""
