"""Letters between silos over Zenoh, with mutual TLS."""
