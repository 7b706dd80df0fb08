#!/usr/bin/python3
"""Lets PyPI's PyTorch be imported without the CUDA libraries that it is linked with.

    torch_cpu.py VENV

PyPI has no build for CPUs alone on x86-64, and the libraries would be several times as large as
PyTorch itself. What the loader asks for is put beside PyTorch's own: libraries of those names that
have the symbols, every one a function that returns an error. CUDA's runtime must be the real one,
because it is called while PyTorch is loaded; it finds no device, so nothing else is ever called."""
import collections
import glob
import os
import re
import subprocess
import sys
import tempfile

OF_CUDA = r"(?:cu|nccl|nv)"


def tool(*argv):
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout


def main():
    packages = glob.glob(os.path.join(sys.argv[1], "lib", "python3*", "site-packages"))[0]
    folder = os.path.join(packages, "torch", "lib")
    there = glob.glob(os.path.join(packages, "nvidia", "*", "lib", "*.so*"))
    defined = set(re.findall(r" [TWV] (\w+)", tool("nm", "-D", "--defined-only", *there)))
    needed, wanted, home = set(), collections.defaultdict(set), {}
    for file in glob.glob(os.path.join(folder, "libtorch*.so")) + glob.glob(
            os.path.join(folder, "libc*.so")):
        needed.update(re.findall(r"NEEDED.*\[(lib%s.*)\]" % OF_CUDA, tool("readelf", "-dW", file)))
        library = None
        for line in tool("readelf", "-VW", file).splitlines():
            found = re.search(r"File: (\S+)", line)
            library = found[1] if found else library
            found = re.search(r"Name: (\S+)", line)
            if found and library:
                home[found[1]] = library
        for name, version in re.findall(r"^ +[Uw] (%s\w+)(?:@(\S+))?$" % OF_CUDA,
                                        tool("nm", "-D", "--undefined-only", file), re.M):
            if name not in defined:
                wanted[version].add(name)
    for library in sorted(needed - {os.path.basename(path) for path in there}):
        versions = [version for version in wanted if version and home[version] == library]
        names = wanted[versions[0] if versions else ""]
        argv = ["cc", "-w", "-shared", "-x", "c", "-", "-o", os.path.join(folder, library),
                "-Wl,-soname," + library]
        with tempfile.NamedTemporaryFile("w") as script:
            if versions:
                script.write("%s { global: *; };\n" % versions[0])
                script.flush()
                argv.append("-Wl,--version-script," + script.name)
            subprocess.run(argv, input="".join("int %s(void){return 1;}\n" % name
                                               for name in sorted(names)), text=True, check=True)
    tool(os.path.join(sys.argv[1], "bin", "python"), "-c",
         "import torch; assert not torch.cuda.is_available(); torch.randn(8, 8) @ torch.randn(8, 8)")


main()
