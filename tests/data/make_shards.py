"""Writes FOLDER/{ustar,gnu,pax}.tar with Python's tarfile: samples as WebDataset lays them out, among folders, links and
long names; and members.txt, what tarfile finds in them: file, place, size, name."""

import io
import pathlib
import sys
import tarfile

folder = pathlib.Path(sys.argv[1])
lines = []
for name, kind in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
    with tarfile.open(folder / f"{name}.tar", "w", format=kind) as archive:
        def add(path, content, kind=tarfile.REGTYPE, link=""):
            member = tarfile.TarInfo(path)
            member.type, member.linkname = kind, link
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(content))

        add("set", b"", tarfile.DIRTYPE)
        for number in range(5):
            add(f"set/{number:03}.CLS", f" {number}\n".encode())
            add(f"set/{number:03}.bytes.bin", bytes([number]) * (500 + 13 * number))
        add("set/link", b"", tarfile.SYMTYPE, "000.cls")
        add("a" * 90 + "/" + "b" * 60 + ".cls", b"7")
        add("a" * 90 + "/" + "b" * 60 + ".bytes.bin", b"")
        if name != "ustar":
            long = "/".join(["long name é"] * 20)
            add(f"{long}/x.cls", b"-3")
            add("link", b"", tarfile.SYMTYPE, "y" * 150)
            add(f"{long}/x.bytes.bin", b"\xff" * 1024)
    with tarfile.open(folder / f"{name}.tar") as archive:
        lines += [f"{name} {member.offset_data} {member.size} {member.name}" for member in archive if member.isreg()]
(folder / "members.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
