"""A hook of MkDocs: adds the pages of the reference, which are made from simdp's specs."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from simdp.studies.schema import reference


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those that are written by hand."""
    for name, page in reference().items():
        files.append(File.generated(config, f"reference/{name}", content=page))
    return files
