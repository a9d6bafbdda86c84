//! GPUs that a specification describes (CDI), with places of their own inside.

use std::fs;

use serde_json::json;

use crate::made_up::{MadeUp, uuid};
use crate::service;

const YAML: &str = "
cdiVersion: 0.6.0
kind: nvidia.com/gpu
devices:
- name: \"0\"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      hostPath: /nodes/first
- name: \"0:1\"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
      hostPath: /nodes/second
    - path: /dev/nvidia-caps/nvidia-cap21
      hostPath: /nodes/cap
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
  - path: /dev/nvidiactl
    hostPath: /nodes/control
  - path: /dev/nvidia-uvm
    hostPath: /nodes/uvm
  hooks:
  - hookName: createContainer
    path: /bin/touch
    args: [nvidia-ctk, hook, create-symlinks, --link, ../libother.so.1::/usr/lib64/vendor/liblink.so]
  mounts:
  - hostPath: /driver/libcuda.so.550
    containerPath: /usr/lib64/vendor/libcuda.so.550
    options: [ro, nosuid, nodev, bind]
  - hostPath: /driver/smi
    containerPath: /usr/bin/nvidia-smi
";

#[test]
fn a_specifications_nodes_files_and_links_are_where_it_says() {
    let host = MadeUp::new();
    for (n, name) in ["first", "second", "cap", "control", "uvm"]
        .iter()
        .enumerate()
    {
        host.node(&format!("/nodes/{name}"), 1, [3, 5, 7, 8, 9][n], 0o666);
    }
    host.built("/driver/libcuda.so.550", "libcuda", "libcuda_answer", 5);
    host.text("/driver/smi", "#!/bin/sh\necho described\n");
    host.mode("/driver/smi", 0o755);
    host.text("/etc/cdi/nvidia.yaml", YAML);
    let service = service(&host, "");
    let part = service.create_with(&json!({ "gpus": ["0:1"] }));
    let seen = part.printed(
        "import ctypes, glob, json, os\n\
         nodes = {p: os.minor(os.fstat(os.open(p, os.O_RDWR)).st_rdev)\n    \
             for p in glob.glob('/dev/nvidia*') + glob.glob('/dev/nvidia-caps/*') if not os.path.isdir(p)}\n\
         print(json.dumps([nodes, ctypes.CDLL('libcuda.so.1').libcuda_answer(), ctypes.CDLL('libcuda.so').libcuda_answer(),\n    \
             os.readlink('/usr/lib64/vendor/liblink.so'), os.path.realpath('/usr/lib/x86_64-linux-gnu/libcuda.so.1'),\n    \
             os.environ['NVIDIA_VISIBLE_DEVICES']]))",
    );
    assert_eq!(
        seen,
        json!([
            {
                "/dev/nvidia1": 5, "/dev/nvidia-caps/nvidia-cap21": 7,
                "/dev/nvidiactl": 8, "/dev/nvidia-uvm": 9,
            },
            5,
            5,
            "../libother.so.1",
            "/usr/lib64/vendor/libcuda.so.550",
            "0:1",
        ])
    );
    assert_eq!(part.command("nvidia-smi")["stdout"], "described\n");
    // Hooks are not run: the program would have made these files in the service's directory.
    for name in ["nvidia-ctk", "create-symlinks"] {
        assert!(!fs::exists(name).unwrap());
    }
}

#[test]
fn a_part_of_a_split_gpu_comes_without_the_others() {
    let host = MadeUp::with_driver(&[(1, 3)]);
    host.split(0, &[1, 2], 20);
    let service = service(&host, "");
    let sandbox = service.create_with(&json!({ "gpus": [format!("MIG-{}/2/0", uuid(0))] }));
    let listed = "import glob, json\nprint(json.dumps(sorted(glob.glob('/dev/nvidia-caps/*') \
                  + glob.glob('/proc/driver/nvidia/capabilities/*/mig/*'))))";
    assert_eq!(
        sandbox.printed(listed),
        json!([
            "/dev/nvidia-caps/nvidia-cap22",
            "/dev/nvidia-caps/nvidia-cap23",
            "/proc/driver/nvidia/capabilities/gpu0/mig/gi2",
        ])
    );
    let other = service.create_with(&json!({ "gpus": 1 }));
    assert_eq!(
        other.created["gpus"],
        json!([format!("MIG-{}/1/0", uuid(0))])
    );
}

#[test]
fn a_place_that_a_specification_cannot_have_is_left_alone() {
    let host = MadeUp::with_driver(&[(1, 3)]);
    let text = YAML.replace("/nodes/first", "/dev/nvidia0").replace(
        "containerPath: /usr/bin/nvidia-smi",
        "containerPath: /home/user/.bashrc\n  - {hostPath: /driver/smi, containerPath: /proc/1/x}\n  \
         - {hostPath: /driver/smi, containerPath: /dev/smi}",
    );
    let text = text.replace("/nodes/control", "/dev/nvidiactl");
    let text = text.replace("/nodes/uvm", "/dev/nvidia-uvm");
    host.built("/driver/libcuda.so.550", "libcuda", "libcuda_answer", 5);
    host.text("/driver/smi", "described");
    host.text("/etc/cdi/nvidia.yaml", &text);
    let service = service(&host, "");
    let sandbox = service.create_with(&json!({ "gpus": [0] }));
    assert_eq!(
        sandbox.command("grep -ls described /home/user/.bashrc /dev/smi; ls /dev | grep -c nvidia")
            ["stdout"],
        "3\n"
    );
}
