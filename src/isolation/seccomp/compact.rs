//! Rewrites a filter that looks only at the system call number as a binary search.
//!
//! seccompiler compares with one number after the other: 1 400 instructions for the allow-list.
//! The kernel translates a program and works out its answer to every number when it is installed,
//! which took 1.1 ms of every sandbox's start. The allowed numbers form some sixty ranges; a
//! search among them is a sixth as long and is installed in a tenth of the time (Linux 6.18).

use seccompiler::{BpfProgram, sock_filter};

/// `BPF_LD | BPF_W | BPF_ABS`: load a word of `struct seccomp_data`.
const LOAD: u16 = 0x20;
/// `BPF_JMP | BPF_JA`: jump.
const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JEQ | BPF_K`: jump if equal.
const JUMP_IF_EQUAL: u16 = 0x15;
/// `BPF_JMP | BPF_JGE | BPF_K`: jump if greater or equal, unsigned.
const JUMP_IF_AT_LEAST: u16 = 0x35;
/// `BPF_RET | BPF_K`: answer.
const ANSWER: u16 = 0x06;

/// Offsets in `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;

/// seccompiler's first instructions: load the architecture, compare, kill.
const PROLOGUE: usize = 3;

/// No call of any kernel has a number this high; above it the answer must be the same for all.
const NUMBERS: u32 = 1024;

/// The same filter as a binary search, or `None` where its answer depends on more than the number
/// and the architecture or the search would not fit the 8-bit jumps of classic BPF.
pub(super) fn compact(program: &BpfProgram) -> Option<BpfProgram> {
    let (prologue, _) = program.split_at_checked(PROLOGUE)?;
    let architecture = prologue[1].k;
    let ranges = ranges(program, architecture)?;
    let mut compacted = prologue.to_vec();
    compacted.push(instruction(LOAD, 0, 0, NUMBER_OFFSET));
    compacted.extend(search(&ranges)?);
    Some(compacted)
}

/// A run of numbers with the same answer, up to the next range's first one.
#[derive(Clone, Copy)]
struct Range {
    first: u32,
    answer: u32,
}

/// What the program answers, number by number, as ranges; the last one is open.
fn ranges(program: &BpfProgram, architecture: u32) -> Option<Vec<Range>> {
    let mut ranges: Vec<Range> = Vec::new();
    for number in 0..=NUMBERS {
        let answer = answer(program, architecture, number)?;
        if ranges.last().is_none_or(|range| range.answer != answer) {
            ranges.push(Range {
                first: number,
                answer,
            });
        }
    }
    let open = answer(program, architecture, u32::MAX)?;
    (ranges.last()?.answer == open).then_some(ranges)
}

/// A search among the ranges: the lower half follows the comparison, the upper half follows that.
fn search(ranges: &[Range]) -> Option<BpfProgram> {
    let [Range { answer, .. }] = ranges else {
        let (lower, upper) = ranges.split_at_checked(ranges.len() / 2)?;
        let lower_search = search(lower)?;
        let skip = u8::try_from(lower_search.len()).ok()?;
        let mut halves = vec![instruction(JUMP_IF_AT_LEAST, skip, 0, upper.first()?.first)];
        halves.extend(lower_search);
        halves.extend(search(upper)?);
        return Some(halves);
    };
    Some(vec![instruction(ANSWER, 0, 0, *answer)])
}

/// Runs a filter as the kernel would; `None` if it reads more than number and architecture.
pub(super) fn answer(program: &BpfProgram, architecture: u32, number: u32) -> Option<u32> {
    let mut accumulator = 0;
    let mut at = 0;
    // Jumps only lead forward, so this ends.
    loop {
        let sock_filter { code, jt, jf, k } = program.get(at)?;
        at += 1;
        let condition = match *code {
            LOAD => {
                accumulator = match *k {
                    NUMBER_OFFSET => number,
                    ARCHITECTURE_OFFSET => architecture,
                    _ => return None,
                };
                continue;
            }
            JUMP => {
                at += usize::try_from(*k).ok()?;
                continue;
            }
            ANSWER => return Some(*k),
            JUMP_IF_EQUAL => accumulator == *k,
            JUMP_IF_AT_LEAST => accumulator >= *k,
            _ => return None,
        };
        at += usize::from(if condition { *jt } else { *jf });
    }
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::isolation::seccomp::{DEFAULT_PROFILE, INSTALL_ORDER};

    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    const AUDIT_ARCH_I386: u32 = 0x4000_0003;
    const X32_BIT: u32 = 0x4000_0000;

    fn profile() -> seccompiler::BpfMap {
        seccompiler::compile_from_json(
            DEFAULT_PROFILE.unwrap(),
            std::env::consts::ARCH.try_into().unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn the_search_answers_as_the_list_does() {
        let program = &profile()["allow"];
        let compacted = compact(program).expect("the allow-list looks only at numbers");
        assert!(compacted.len() < program.len() / 5, "{}", compacted.len());

        let numbers = (0..5000)
            .chain((0..5000).map(|number| number | X32_BIT))
            .chain((0..32).map(|bit| 1 << bit))
            .chain([u32::MAX, u32::MAX - 1, i32::MAX as u32]);
        for number in numbers {
            for architecture in [AUDIT_ARCH_X86_64, AUDIT_ARCH_I386, 0, u32::MAX] {
                assert_eq!(
                    answer(&compacted, architecture, number),
                    answer(program, architecture, number),
                    "number {number:#x}, architecture {architecture:#x}"
                );
            }
        }
    }

    #[test]
    fn other_architectures_are_killed() {
        for name in INSTALL_ORDER {
            let program = &profile()[name];
            assert_eq!(
                answer(program, AUDIT_ARCH_I386, 0),
                Some(libc::SECCOMP_RET_KILL_PROCESS),
                "{name}"
            );
        }
    }

    #[test]
    fn a_filter_that_reads_arguments_stays_as_it_is() {
        assert!(compact(&profile()["refuse"]).is_none());
    }
}
