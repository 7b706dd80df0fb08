#!/usr/bin/python3
"""Becomes the process of a container: what a container's runtime does for a pod's spec, by hand.

    container.py SPEC.json

It is the first process of a pid namespace, in a mount namespace of its own, and root; rig.py sees
to that (pid1=True). It makes a root of its own, which holds the image and what the pod mounts, and
enters it; becomes the user that the pod names, without capabilities, and with no way to get any;
and becomes the command. SPEC has:

    root      an empty folder, which becomes the root
    image     {path in the container: path here}; a file is copied, a folder is mounted read-only
    links     {path: target}
    files     {path: text}
    secrets   {path of a folder: {name: text}}, mode and group as below
    mode      of a Secret's files; group: theirs, and a supplementary group of the process
    empty     {path: size in bytes}: volumes that can be written
    shared    {path: path here}: volumes that can be written and outlive the container
    devices   names in /dev that are there besides the usual ones
    hosts     the file that becomes /etc/hosts
    user, gid, read_only, keep_privileges, env, cwd, argv
"""
import ctypes
import json
import os
import shutil
import stat
import sys

libc = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 23, 24, 38
DEVICES = ("null", "zero", "full", "random", "urandom")


def mount(source, target, kind=None, flags=0, data=None):
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    if libc.mount(*words, flags, None if data is None else data.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount %s at %s: %s" % (
            source, target, os.strerror(ctypes.get_errno())))


def put_file(path, text, mode=0o644, group=0):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chown(path, 0, group)
    os.chmod(path, mode)


def put_secret(folder, values, mode, group):
    """As a kubelet does: links lead through a folder that is exchanged when the Secret changes."""
    os.makedirs(folder)
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    for name, text in values.items():
        put_file(os.path.join(folder, "..2026_11_17", name), text, mode, group)
        os.symlink(os.path.join("..data", name), os.path.join(folder, name))
    os.symlink("..2026_11_17", os.path.join(folder, "..data"))
    mount(None, folder, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def put_image(root, spec):
    for path, source in spec["image"].items():
        target = root + path
        if os.path.isdir(source):
            os.makedirs(target)
            mount(source, target, None, MS_BIND)
            mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(source, target)
    for path, target in spec["links"].items():
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(target, root + path)
    for path, text in spec["files"].items():
        put_file(root + path, text)


def put_devices(root, names):
    os.makedirs(root + "/dev")
    mount("tmpfs", root + "/dev", "tmpfs", MS_NOSUID, "mode=0755")
    for name in DEVICES:
        open(root + "/dev/" + name, "w").close()
        mount("/dev/" + name, root + "/dev/" + name, None, MS_BIND)
    for i, name in enumerate(names):
        os.mknod(root + "/dev/" + name, 0o666 | stat.S_IFCHR, os.makedev(195, i))


def put_volumes(root, spec):
    for path, values in spec["secrets"].items():
        put_secret(root + path, values, spec["mode"], spec["group"])
    for path, size in spec["empty"].items():
        os.makedirs(root + path, exist_ok=True)
        mount("tmpfs", root + path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=2777,size=%d" % size)
        os.chown(root + path, 0, spec["group"])
    for path, source in spec["shared"].items():
        os.makedirs(root + path)
        mount(source, root + path, None, MS_BIND)
    os.makedirs(root + "/proc")
    mount("proc", root + "/proc", "proc")
    os.makedirs(root + "/sys/fs/cgroup")
    mount("/sys/fs/cgroup", root + "/sys/fs/cgroup", None, MS_BIND | MS_REC)
    put_file(root + "/etc/hosts", "")
    mount(spec["hosts"], root + "/etc/hosts", None, MS_BIND)


def drop_privileges(spec):
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.setgroups([spec["group"]])
    os.setresgid(spec["gid"], spec["gid"], spec["gid"])
    os.setresuid(spec["user"], spec["user"], spec["user"])


def main():
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    root = spec["root"]
    mount("tmpfs", root, "tmpfs", MS_NOSUID, "mode=0755")
    put_image(root, spec)
    put_devices(root, spec["devices"])
    put_volumes(root, spec)
    if spec["read_only"]:
        mount(None, root, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID)
    os.chroot(root)
    os.chdir(spec["cwd"])
    os.umask(0o022)
    if not spec["keep_privileges"]:
        drop_privileges(spec)
    # execvpe() would import modules, which this root may not have.
    program = next((path for path in ("%s/%s" % (folder, spec["argv"][0]) for folder in
                                      spec["env"]["PATH"].split(":")) if os.access(path, os.X_OK)),
                   spec["argv"][0])
    os.execve(program, spec["argv"], spec["env"])


main()
