//! A made-up host for tests: real device nodes of harmless numbers, real libraries, and texts as the
//! vendor's driver has them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tempfile::TempDir;

/// What the made-up driver calls itself.
pub const VERSION: &str = "550.54.14";
/// Where its libraries are.
pub const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// UUID of the made-up GPU `n`.
pub fn uuid(n: u32) -> String {
    format!("GPU-{n:08x}-0000-0000-0000-000000000000")
}

/// The root of a host.
pub struct MadeUp {
    dir: TempDir,
}

impl MadeUp {
    /// Without any driver.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        // Below it everything has a mode of its own; what is shown inside must be readable there.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        Self { dir }
    }

    /// With as many GPUs as there are `numbers`, of these device numbers, and everything that the
    /// driver brings.
    pub fn with_driver(numbers: &[(u64, u64)]) -> Self {
        let host = Self::new();
        for (n, (major, minor)) in (0..).zip(numbers) {
            host.node(&format!("/dev/nvidia{n}"), *major, *minor, 0o666);
            host.gpu(n);
        }
        host.node("/dev/nvidiactl", 1, 7, 0o666);
        host.node("/dev/nvidia-uvm", 1, 9, 0o666);
        let proc = "/proc/driver/nvidia";
        host.text(
            &format!("{proc}/version"),
            &format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Thu Feb 22\n"),
        );
        host.text(
            &format!("{proc}/params"),
            "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n",
        );
        host.text(
            "/proc/modules",
            "ext4 900 1 - Live 0xffffffffc1000000\n\
             nvidia_uvm 1540096 0 - Live 0xffffffffc2000000\n\
             nvidia 56000 2 nvidia_uvm, Live 0xffffffffc3000000\n",
        );
        for module in ["nvidia", "nvidia_uvm"] {
            host.text(&format!("/sys/module/{module}/initstate"), "live\n");
        }
        host.text("/sys/devices/system/cpu/online", "0-1\n");
        host.text("/sys/devices/system/memory/block_size_bytes", "8000000\n");
        host.library("libcuda", "libcuda_answer", 7);
        host.library("libnvidia-ml", "libnvidia_ml_answer", 8);
        host.text(
            "/usr/bin/nvidia-smi",
            "#!/bin/sh\necho GPU $NVIDIA_VISIBLE_DEVICES\n",
        );
        host.mode("/usr/bin/nvidia-smi", 0o755);
        host
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where a path of the host is; its directory is made.
    pub fn at(&self, path: &str) -> PathBuf {
        let at = self.dir.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(at.parent().expect("it has one")).expect("directories can be made");
        at
    }

    pub fn text(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).expect("a file can be written");
    }

    pub fn mode(&self, path: &str, mode: u32) {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.at(path), mode).expect("it is there");
    }

    pub fn link(&self, path: &str, to: &str) {
        symlink(to, self.at(path)).expect("a link can be made");
    }

    /// A character device.
    pub fn node(&self, path: &str, major: u64, minor: u64, mode: u32) {
        let at = self.at(path);
        mknod(&at, SFlag::S_IFCHR, Mode::empty(), makedev(major, minor))
            .expect("tests run as root, on a file system with devices");
        self.mode(path, mode);
    }

    /// What `/proc` and `/sys` tell of GPU `n`.
    pub fn gpu(&self, n: u32) {
        let address = format!("0000:{:02x}:00.0", n + 1);
        self.text(
            &format!("/proc/driver/nvidia/gpus/{address}/information"),
            &format!(
                "Model: \t\t Made Up\nIRQ:   \t\t 42\nGPU UUID: \t {}\nBus Location: \t {address}\n\
                 Device Minor: \t {n}\nGPU Excluded:\t No\n",
                uuid(n)
            ),
        );
        self.text(
            &format!("/sys/devices/pci0000:00/{address}/vendor"),
            "0x10de\n",
        );
        self.link(
            &format!("/sys/bus/pci/devices/{address}"),
            &format!("../../../devices/pci0000:00/{address}"),
        );
    }

    /// Splits GPU `n` into parts of one compute instance; `first` is the minor number of the first
    /// capability.
    pub fn split(&self, n: u32, gpu_instances: &[u32], first: u32) {
        for (gi, minor) in gpu_instances.iter().zip((first..).step_by(2)) {
            let dir = format!("/proc/driver/nvidia/capabilities/gpu{n}/mig/gi{gi}");
            for (dir, minor) in [(dir.clone(), minor), (format!("{dir}/ci0"), minor + 1)] {
                self.text(
                    &format!("{dir}/access"),
                    &format!(
                        "DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
                    ),
                );
                self.node(&format!("/dev/nvidia-caps/nvidia-cap{minor}"), 1, 3, 0o666);
            }
        }
    }

    /// A library with one function, as the driver's are installed: under its version, with a link for
    /// its soname.
    pub fn library(&self, name: &str, function: &str, answer: i32) {
        self.built(
            &format!("{LIBRARIES}/{name}.so.{VERSION}"),
            name,
            function,
            answer,
        );
        self.link(
            &format!("{LIBRARIES}/{name}.so.1"),
            &format!("{name}.so.{VERSION}"),
        );
    }

    /// A library with the soname `<name>.so.1`, anywhere.
    pub fn built(&self, path: &str, name: &str, function: &str, answer: i32) {
        let source = self.at("/source.c");
        fs::write(
            &source,
            format!("int {function}(void) {{ return {answer}; }}\n"),
        )
        .expect("a file can be written");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-nostdlib"])
            .arg(format!("-Wl,-soname,{name}.so.1"))
            .arg("-o")
            .arg(self.at(path))
            .arg(&source)
            .status();
        assert!(
            built.is_ok_and(|status| status.success()),
            "cc builds a library"
        );
        fs::remove_file(source).expect("it is there");
    }
}
