"""Tools for operators: inspection, diagnosis and fault injection of live clusters."""
