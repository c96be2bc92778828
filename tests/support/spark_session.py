"""Settings of Spark: of the session that all tests of a process share, and of programs."""

from __future__ import annotations

from pathlib import Path

# Measured: with few rows most of the time goes into planning and compilation.
FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}

SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
    **FEW_ROWS,
}


def quick_programs(directory: Path) -> dict[str, str]:
    """Return variables with which Spark programs have the settings for few rows."""
    place = directory / "spark-conf"
    place.mkdir(exist_ok=True)
    lines = [f"{name} {value}\n" for name, value in FEW_ROWS.items()]
    (place / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    return {"SPARK_CONF_DIR": str(place)}
