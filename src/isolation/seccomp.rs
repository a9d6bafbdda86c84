//! The system calls that code in a sandbox may make.
//!
//! `seccomp/default.json` holds the rules as data, a reason with each. They are three filters, not
//! one, because a filter has a single answer for what it matches and a single one for the rest:
//!
//! | filter    | answers                   | to                                                |
//! |-----------|---------------------------|---------------------------------------------------|
//! | `allow`   | `ENOSYS` to what is not listed | unknown numbers: libc and runtimes fall back  |
//! | `sockets` | `EAFNOSUPPORT` to matches | families and protocols that load kernel modules   |
//! | `refuse`  | `EPERM` to matches        | listed calls with forbidden arguments             |
//!
//! `ENOSYS` rather than `EPERM` for the rest covers `clone3`, whose flags lie behind a pointer that
//! a filter cannot read: libc then uses `clone`, whose flags it can. It covers the x32 numbers too,
//! which share the architecture's audit value and are on no list. Any other architecture (i386
//! through `int 0x80`) is killed by the first instructions that seccompiler emits.
//!
//! A zygote has filters of its own, as its imports may be somebody else's code: the same ones with the
//! few calls more that forking into a sandbox takes (`seccomp/zygote.json`). Its kernels inherit them,
//! and install theirs above.
//!
//! Sandboxes with GPUs have filters with a few calls more (`seccomp/gpu.json`), which a zygote's let
//! through for the kernels that inherit them. The ioctl(2) numbers of the drivers need no rule: `refuse`
//! names three of terminals, and those of nvidia.ko are of type `F` with the size of their argument above
//! (`0xc0..46..`), those of nvidia-uvm.ko are small numbers and `0x30000001` and up
//! (kernel-open/common/inc/nv-ioctl.h, kernel-open/nvidia-uvm/uvm_ioctl.h of
//! NVIDIA/open-gpu-kernel-modules).
//!
//! The kernel runs every filter and takes the strictest answer, of equal ones that of the filter
//! installed last. `refuse` comes last because it ends `seccomp(2)` and `PR_SET_SECCOMP`, which
//! installing the others needs.

mod compact;

use seccompiler::{BpfProgram, TargetArch};
use serde_json::Value;

/// The rules; numbers and layouts are those of x86-64.
#[cfg(target_arch = "x86_64")]
const DEFAULT_PROFILE: Option<&[u8]> = Some(include_bytes!("../../seccomp/default.json"));

/// In what the filters of a zygote differ.
const ZYGOTE_PROFILE: &[u8] = include_bytes!("../../seccomp/zygote.json");

/// No profile is written for this architecture.
#[cfg(not(target_arch = "x86_64"))]
const DEFAULT_PROFILE: Option<&[u8]> = None;

/// Calls that sandboxes with GPUs may make beside those, and no others.
const GPU_PROFILE: &[u8] = include_bytes!("../../seccomp/gpu.json");

/// The filters of a profile in the order in which they are installed.
const INSTALL_ORDER: [&str; 3] = ["allow", "sockets", "refuse"];

/// Why a profile could not be compiled or installed.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// There is no profile for this machine, and a sandbox without one must not start.
    #[error(
        "no system call profile for {}: sandcell runs on x86_64",
        std::env::consts::ARCH
    )]
    Architecture,
    /// The profile is not what seccompiler reads, or it names a call that does not exist.
    #[error("failed to compile the system call profile: {0}")]
    Compile(#[source] seccompiler::Error),
    /// The profile lacks a filter or has one that nobody would install.
    #[error("the system call profile must hold exactly the filters allow, sockets and refuse")]
    Names,
    /// The kernel refused a filter.
    #[error("failed to install the filter {name}: {source}")]
    Install {
        /// The filter.
        name: &'static str,
        /// What the kernel said.
        source: seccompiler::Error,
    },
}

/// A compiled profile, its programs in the order in which they must be installed.
#[derive(Debug, Clone)]
pub struct Filters {
    programs: Vec<BpfProgram>,
}

impl Filters {
    /// Compiles the profile that is built in.
    pub fn default_profile() -> Result<Self, SeccompError> {
        Self::compile(DEFAULT_PROFILE.ok_or(SeccompError::Architecture)?)
    }

    /// Compiles what a zygote runs under: the default profile, what `seccomp/zygote.json` and
    /// `seccomp/gpu.json` allow beside it, and without the rules that they lift.
    pub fn zygote_profile() -> Result<Self, SeccompError> {
        let profile = DEFAULT_PROFILE.ok_or(SeccompError::Architecture)?;
        let profile = widened(profile, ZYGOTE_PROFILE).ok_or(SeccompError::Names)?;
        Self::compile(&widened(&profile, GPU_PROFILE).ok_or(SeccompError::Names)?)
    }

    /// Compiles what processes of sandboxes with GPUs run under.
    pub fn gpu_profile() -> Result<Self, SeccompError> {
        let profile = DEFAULT_PROFILE.ok_or(SeccompError::Architecture)?;
        Self::compile(&widened(profile, GPU_PROFILE).ok_or(SeccompError::Names)?)
    }

    fn compile(profile: &[u8]) -> Result<Self, SeccompError> {
        let arch = TargetArch::try_from(std::env::consts::ARCH)
            .map_err(|error| SeccompError::Compile(error.into()))?;
        let mut by_name =
            seccompiler::compile_from_json(profile, arch).map_err(SeccompError::Compile)?;
        let programs = INSTALL_ORDER
            .iter()
            .map(|name| {
                let program = by_name.remove(*name).ok_or(SeccompError::Names)?;
                Ok(compact::compact(&program).unwrap_or(program))
            })
            .collect::<Result<_, _>>()?;
        if !by_name.is_empty() {
            return Err(SeccompError::Names);
        }
        Ok(Self { programs })
    }

    /// How many programs there are.
    pub fn count(&self) -> usize {
        self.programs.len()
    }

    /// Each program as an array of the kernel's `struct sock_filter`, in the order of installation:
    /// what the zygote, which is Python, hands to `seccomp(2)` in a kernel that it forked.
    pub fn as_bytes(&self) -> Vec<Vec<u8>> {
        self.programs
            .iter()
            .map(|program| program.iter().flat_map(instruction_bytes).collect())
            .collect()
    }

    /// Installs all filters on the calling thread and sets `no_new_privs`. There is no way back:
    /// the caller must have dropped identity and capabilities, since it can no longer do so with
    /// calls that are not listed. Allocates nothing, so a forked child may call it.
    pub fn apply(&self) -> Result<(), SeccompError> {
        for (name, program) in INSTALL_ORDER.into_iter().zip(&self.programs) {
            seccompiler::apply_filter(program)
                .map_err(|source| SeccompError::Install { name, source })?;
        }
        Ok(())
    }
}

/// A profile with the rules of `changes.allow` in its filter `allow`, and without those of its filter
/// `refuse` that `changes.lift` names by call and, where there is one, first argument.
fn widened(profile: &[u8], changes: &[u8]) -> Option<Vec<u8>> {
    let mut profile: Value = serde_json::from_slice(profile).ok()?;
    let changes: Value = serde_json::from_slice(changes).ok()?;
    let more = changes["allow"].as_array()?.iter().cloned();
    profile["allow"]["filter"].as_array_mut()?.extend(more);
    for lifted in changes["lift"].as_array()? {
        let rules = profile["refuse"]["filter"].as_array_mut()?;
        let before = rules.len();
        rules.retain(|rule| {
            rule["syscall"] != lifted["syscall"] || rule["args"][0]["val"] != lifted["value"]
        });
        // A lift of nothing is a rule that was renamed.
        (rules.len() < before).then_some(())?;
    }
    serde_json::to_vec(&profile).ok()
}

/// `struct sock_filter`: `u16 code; u8 jt; u8 jf; u32 k`, in native byte order and without padding.
fn instruction_bytes(instruction: &seccompiler::sock_filter) -> [u8; 8] {
    let [code_0, code_1] = instruction.code.to_ne_bytes();
    let [k_0, k_1, k_2, k_3] = instruction.k.to_ne_bytes();
    [
        code_0,
        code_1,
        instruction.jt,
        instruction.jf,
        k_0,
        k_1,
        k_2,
        k_3,
    ]
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn every_rule_gives_its_reason() {
        let profile: serde_json::Value =
            serde_json::from_slice(&gpu_profile()).expect("the profile is JSON");
        for (name, filter) in profile.as_object().unwrap() {
            let rules = filter["filter"].as_array().unwrap();
            assert!(!rules.is_empty(), "{name} has no rules");
            for rule in rules {
                let reason = rule["comment"].as_str().unwrap_or_default();
                assert!(reason.len() >= 8, "{name}: no reason with {rule}");
            }
        }
    }

    fn gpu_profile() -> Vec<u8> {
        widened(DEFAULT_PROFILE.unwrap(), GPU_PROFILE).expect("the addition is one to allow")
    }

    #[test]
    fn no_call_is_listed_twice() {
        let profile: serde_json::Value =
            serde_json::from_slice(&gpu_profile()).expect("the profile is JSON");
        let mut seen = std::collections::BTreeSet::new();
        for rule in profile["allow"]["filter"].as_array().unwrap() {
            assert!(seen.insert(rule["syscall"].as_str().unwrap()), "{rule}");
            // seccompiler takes several rules of one call as alternatives: conditions here would
            // be overlooked beside a rule without any.
            assert!(
                rule.get("args").is_none(),
                "allow has no conditions: {rule}"
            );
        }
    }

    #[test]
    fn bytes_are_the_kernel_layout() {
        let filters = Filters::default_profile().unwrap();
        let bytes = filters.as_bytes();
        assert_eq!(bytes.len(), INSTALL_ORDER.len());
        for (program, bytes) in filters.programs.iter().zip(&bytes) {
            assert_eq!(bytes.len(), program.len() * 8);
            // Every program starts by loading the architecture: BPF_LD|BPF_W|BPF_ABS, offset 4.
            assert_eq!(bytes[..8], [0x20, 0, 0, 0, 4, 0, 0, 0]);
        }
    }

    /// Filters bind the thread that installs them, so a thread of the test is a sandbox's stand-in.
    fn in_filtered_thread<T: Send + 'static>(attempt: fn() -> T) -> T {
        std::thread::spawn(move || {
            Filters::default_profile().unwrap().apply().unwrap();
            attempt()
        })
        .join()
        .unwrap()
    }

    #[test]
    fn the_kernel_enforces_all_three_filters() {
        use nix::errno::Errno;
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
        use nix::sys::stat::{Mode, SFlag, mknod};

        let unlisted = in_filtered_thread(|| nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS));
        assert_eq!(unlisted, Err(Errno::ENOSYS));

        let families = in_filtered_thread(|| {
            let open = |family, kind| socket(family, kind, SockFlag::empty(), None).map(drop);
            [
                open(AddressFamily::Netlink, SockType::Raw),
                open(AddressFamily::Inet, SockType::Raw),
                open(AddressFamily::Inet, SockType::Stream),
                open(AddressFamily::Unix, SockType::SeqPacket),
            ]
        });
        assert_eq!(
            families,
            [
                Err(Errno::EAFNOSUPPORT),
                Err(Errno::EAFNOSUPPORT),
                Ok(()),
                Ok(())
            ]
        );

        let device = in_filtered_thread(|| mknod("device", SFlag::S_IFCHR, Mode::empty(), 0));
        assert_eq!(device, Err(Errno::EPERM));
    }

    /// With GPUs a process may make the calls that the addition names, and everything else is answered
    /// as without.
    #[test]
    fn the_addition_changes_the_answers_to_what_it_names_only() {
        let more: serde_json::Value = serde_json::from_slice(GPU_PROFILE).unwrap();
        let named = more["allow"].as_array().unwrap().len();
        let (default, gpu) = (
            Filters::default_profile().unwrap(),
            Filters::gpu_profile().unwrap(),
        );
        assert_eq!(default.programs[1..], gpu.programs[1..]);
        let answers = |filters: &Filters| -> Vec<Option<u32>> {
            let program = &filters.programs[0];
            let architecture = program[1].k;
            let numbers = (0..2048).chain([u32::MAX]);
            numbers
                .map(|number| compact::answer(program, architecture, number))
                .collect()
        };
        let changed: Vec<usize> = answers(&default)
            .iter()
            .zip(&answers(&gpu))
            .enumerate()
            .filter_map(|(number, (before, after))| (before != after).then_some(number))
            .collect();
        assert_eq!(changed.len(), named);
        // mbind and set_mempolicy.
        assert_eq!(changed, [237, 238]);
    }

    #[test]
    fn nothing_can_be_installed_after_the_last_filter() {
        let again = in_filtered_thread(|| Filters::default_profile().unwrap().apply());
        assert!(matches!(
            again,
            Err(SeccompError::Install { name: "allow", .. })
        ));
        let status = in_filtered_thread(|| std::fs::read_to_string("/proc/thread-self/status"));
        let status = status.unwrap();
        assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
        assert!(status.contains("Seccomp:\t2\n"), "{status}");
        assert!(status.contains("Seccomp_filters:\t3\n"), "{status}");
    }

    #[test]
    fn programs_run_under_the_filters() {
        let output = in_filtered_thread(|| {
            std::process::Command::new("/bin/sh")
                .args(["-c", "(echo a; echo b) | sort -r | tr -d '\\n'"])
                .output()
        });
        assert_eq!(output.unwrap().stdout, b"ba");
    }

    #[test]
    fn a_zygote_may_do_little_more_than_a_kernel() {
        use nix::errno::Errno;
        use nix::sched::{CloneFlags, setns, unshare};

        let (new, mount, join, more) = std::thread::spawn(|| {
            Filters::zygote_profile().unwrap().apply().unwrap();
            let own = std::fs::File::open("/proc/self/ns/uts").unwrap();
            (
                unshare(CloneFlags::CLONE_NEWNET),
                nix::mount::umount("/nowhere"),
                setns(own, CloneFlags::CLONE_NEWUTS),
                Filters::default_profile().unwrap().apply().is_ok(),
            )
        })
        .join()
        .unwrap();
        assert_eq!((new, mount), (Err(Errno::ENOSYS), Err(Errno::ENOSYS)));
        assert_ne!(join, Err(Errno::ENOSYS));
        assert!(more, "a kernel's filters go on top");
        let reasons: Value = serde_json::from_slice(ZYGOTE_PROFILE).unwrap();
        for rule in ["allow", "lift"]
            .iter()
            .flat_map(|list| reasons[*list].as_array().unwrap())
        {
            assert!(
                rule["comment"].as_str().unwrap_or_default().len() >= 8,
                "{rule}"
            );
        }
    }

    #[test]
    fn changes_that_change_nothing_are_refused() {
        let profile = DEFAULT_PROFILE.unwrap();
        let lift = |lift: &str| format!(r#"{{"allow": [], "lift": [{lift}]}}"#);
        assert!(widened(profile, lift(r#"{"syscall": "seccomp"}"#).as_bytes()).is_some());
        assert!(
            widened(
                profile,
                lift(r#"{"syscall": "prctl", "value": 2222}"#).as_bytes()
            )
            .is_none()
        );
    }

    #[test]
    fn a_profile_with_other_filters_is_refused() {
        assert!(matches!(Filters::compile(b"{}"), Err(SeccompError::Names)));
        assert!(matches!(
            Filters::compile(b"not json"),
            Err(SeccompError::Compile(_))
        ));
    }
}
