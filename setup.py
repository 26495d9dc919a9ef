"""Packaging, read from settings.ini, and the commands from their table."""

import tomllib
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

here = Path(__file__).parent
ini = ConfigParser(delimiters=["="])
ini.read(here / "settings.ini", encoding="utf-8")
cfg = ini["DEFAULT"]
suffix = "_requirements"
commands = tomllib.loads((here / "verifiers_nb/cli/data/commands.toml").read_text(encoding="utf-8"))


class BuildModules(build_py):
    """Leave out nbdev's index of names, which only its own tools read."""

    def find_package_modules(self, package, package_dir):
        """Return the modules of a package, as (package, module, file)."""
        found = super().find_package_modules(package, package_dir)
        return [each for each in found if each[1] != "_modidx"]


setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author=cfg["author"],
    author_email=cfg["author_email"],
    url=cfg["git_url"],
    license="MIT",
    license_files=["LICENSE"],
    keywords=cfg["keywords"].split(),
    python_requires=f">={cfg['min_python']}",
    cmdclass={"build_py": BuildModules},
    packages=find_packages(include=[f"{cfg['lib_path']}*"]),
    package_data={cfg["lib_path"]: ["py.typed", "*/data/*", "*/data/*/*", "models/*/*"]},
    install_requires=cfg["requirements"].split(),
    extras_require={
        k.removesuffix(suffix): v.split() for k, v in cfg.items() if k.endswith(suffix)
    },
    entry_points={
        "console_scripts": [
            f"{name}=verifiers_nb.cli.{row['main']}"
            for name, row in commands.items()
            if "main" in row
        ]
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Framework :: Jupyter",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    zip_safe=False,
)
