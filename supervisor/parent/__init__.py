"""The parent: owns the LISTEN connection and the leases, watches workers, recovers, reaps, tends. Runs no user code."""
