//! The name that a shared library is loaded by, from its own dynamic section (elf(5)), as ldconfig(8)
//! takes it.

use std::fs::File;

use elf::ElfStream;
use elf::abi::{DT_SONAME, DT_STRTAB, EM_X86_64, PT_DYNAMIC, PT_LOAD};
use elf::endian::LittleEndian;
use elf::file::Class;

use super::tree::read_at;

/// Bytes of a dynamic section: 16 an entry, and libraries have some dozen.
const MAX_DYNAMIC_BYTES: u64 = 64 * 1024;
/// Longest name, in bytes (`NAME_MAX`).
const MAX_NAME_BYTES: usize = 255;

/// `None` for what is no library of this architecture: an i386 one beside it, a text, a loader script.
pub(super) fn of(file: &File) -> Option<String> {
    let elf = ElfStream::<LittleEndian, _>::open_stream(file).ok()?;
    if elf.ehdr.class != Class::ELF64 || elf.ehdr.e_machine != EM_X86_64 {
        return None;
    }
    let segments = elf.segments();
    let dynamic = segments.iter().find(|s| s.p_type == PT_DYNAMIC)?;
    let most = dynamic.p_filesz.min(MAX_DYNAMIC_BYTES) as usize;
    let entries = read_at(file, dynamic.p_offset, most);
    let value = |tag: i64| {
        entries.chunks_exact(16).find_map(|entry| {
            let (found, value) = entry.split_at(8);
            (i64::from_le_bytes(found.try_into().ok()?) == tag)
                .then(|| u64::from_le_bytes(value.try_into().expect("eight bytes")))
        })
    };
    let (strings, name) = (value(DT_STRTAB)?, value(DT_SONAME)?);
    // The table's address is one in memory.
    let load = segments.iter().find(|s| {
        s.p_type == PT_LOAD
            && strings
                .checked_sub(s.p_vaddr)
                .is_some_and(|n| n < s.p_filesz)
    })?;
    let offset = load
        .p_offset
        .checked_add(strings - load.p_vaddr)?
        .checked_add(name)?;
    let name = read_at(file, offset, MAX_NAME_BYTES + 1);
    let end = name.iter().position(|b| *b == 0)?;
    let name = std::str::from_utf8(&name[..end]).ok()?;
    (name.starts_with("lib") && name.contains(".so") && !name.contains('/'))
        .then(|| name.to_owned())
}
