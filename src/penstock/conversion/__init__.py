"""Anything that gives rows → a dataset, by named tasks that any engine may run. See `docs/converting.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.conversion.codec_trials import try_codecs as try_codecs
    from penstock.conversion.converting import ConvertOptions as ConvertOptions
    from penstock.conversion.converting import convert as convert
    from penstock.conversion.inputs import from_table as from_table
    from penstock.conversion.plan import ConvertReport as ConvertReport
    from penstock.conversion.spark import dataframe_to_mds as dataframe_to_mds
    from penstock.conversion.spark import infer_dataframe_schema as infer_dataframe_schema
    from penstock.publish.engines import DaskEngine as DaskEngine
    from penstock.publish.engines import ProcessPool as ProcessPool
    from penstock.publish.engines import RayEngine as RayEngine
    from penstock.publish.engines import SparkEngine as SparkEngine
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
