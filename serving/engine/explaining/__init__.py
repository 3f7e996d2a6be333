"""Why a datapoint is at its rank for a query, or is no hit of it."""
