//! Files that processes of the sandbox may write to without a system call that anybody hears of.

use std::fs;

use crate::isolation::spec::HOME;

/// Paths below the working directory of which somebody has a writable shared mapping (proc_pid_maps(5)),
/// each as often as it is mapped.
pub(super) fn written() -> impl Iterator<Item = Vec<u8>> {
    let processes = fs::read_dir("/proc").into_iter().flatten();
    // Those of init, and of this process, are not to be read.
    let maps = processes.filter_map(|process| fs::read(process.ok()?.path().join("maps")).ok());
    maps.flat_map(|maps| {
        let lines = maps.split(|byte| *byte == b'\n').filter_map(written_by);
        lines.map(<[u8]>::to_vec).collect::<Vec<_>>()
    })
}

/// Of a line: addresses, access, offset, device, inode, path.
fn written_by(line: &[u8]) -> Option<&[u8]> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let access = fields.nth(1)?;
    if access.get(1) != Some(&b'w') || access.get(3) != Some(&b's') {
        return None;
    }
    let path = fields.nth(3)?.trim_ascii_start();
    path.strip_prefix(HOME.as_bytes())?.strip_prefix(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_files_are_told_from_others() {
        for (line, path) in [
            (
                "7f00-7f01 rw-s 00000000 00:2a 12                 /home/user/d/a b",
                Some("d/a b"),
            ),
            ("7f00-7f01 -wxs 00000000 00:2a 12 /home/user/m", Some("m")),
            ("7f00-7f01 r--s 00000000 00:2a 12 /home/user/m", None),
            ("7f00-7f01 rw-p 00000000 00:2a 12 /home/user/m", None),
            ("7f00-7f01 rw-s 00000000 00:01 12 /dev/zero (deleted)", None),
            ("7f00-7f01 rw-s 00000000 00:2a 12 /home/user2/m", None),
            ("7f00-7f01 rw-p 00000000 00:00 0 ", None),
            ("", None),
        ] {
            assert_eq!(
                written_by(line.as_bytes()),
                path.map(str::as_bytes),
                "{line}"
            );
        }
    }
}
