//! The recipe: the files of `rootfs/` that decide what a mirror holds, embedded in the binary.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

/// Counts changes to the Rust half of the recipe (`build.rs`, `tree.rs`) that change the tree.
const VERSION: &str = "2";

pub(super) const ENTER: &str = include_str!("../../rootfs/enter.sh");
const PACKAGES: &str = include_str!("../../rootfs/packages.txt");
pub(super) const REQUIREMENTS: &str = include_str!("../../rootfs/requirements.txt");

/// Files that the steps find on `/tmp/recipe`: name and content.
pub(super) const INPUTS: [(&str, &str); 10] = [
    ("requirements.txt", REQUIREMENTS),
    ("python.sh", include_str!("../../rootfs/python.sh")),
    ("patch.py", include_str!("../../rootfs/patch.py")),
    ("bytecode.py", include_str!("../../rootfs/bytecode.py")),
    ("fonts.py", include_str!("../../rootfs/fonts.py")),
    ("matplotlibrc", include_str!("../../rootfs/matplotlibrc")),
    ("finish.sh", include_str!("../../rootfs/finish.sh")),
    ("uv.sh", include_str!("../../rootfs/uv.sh")),
    ("no-index.txt", include_str!("../../rootfs/no-index.txt")),
    ("no-manager.sh", include_str!("../../rootfs/no-manager.sh")),
];

/// SHA-256, in hexadecimal, over all of the recipe, `more` Debian packages and the processor's architecture.
pub(super) fn key(more: &[String]) -> String {
    let mut hash = Sha256::new();
    let fixed = [
        ("version", VERSION),
        ("arch", std::env::consts::ARCH),
        ("enter.sh", ENTER),
    ];
    let more = packages(more);
    for (name, content) in fixed.iter().chain(&[("packages", &*more)]).chain(&INPUTS) {
        hash.update(format!("{name} {}\n", content.len()));
        hash.update(content);
    }
    super::manifest::hex(&hash.finalize())
}

/// The Debian packages and `more`, as mmdebstrap's `--include` takes them, each once.
pub(super) fn packages(more: &[String]) -> String {
    let own = PACKAGES
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let all: BTreeSet<&str> = own.chain(more.iter().map(String::as_str)).collect();
    all.into_iter().collect::<Vec<_>>().join(",")
}

/// The lines of the locked requirements that are about uv: it is fetched first, by its hash.
pub(super) fn uv_requirement() -> String {
    let mut taken = String::new();
    for line in REQUIREMENTS
        .lines()
        .skip_while(|line| !line.starts_with("uv=="))
    {
        taken.push_str(line);
        taken.push('\n');
        if !line.ends_with('\\') {
            break;
        }
    }
    taken
}

/// How many Python packages are locked; scales the progress of their step.
pub(super) fn requirement_count() -> usize {
    REQUIREMENTS
        .lines()
        .filter(|line| line.contains("==") && !line.starts_with([' ', '#']))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_locked_by_hash() {
        let uv = uv_requirement();
        assert!(
            uv.starts_with("uv==") && uv.contains("--hash=sha256:"),
            "{uv}"
        );
        assert!(!uv.trim_end().ends_with('\\'));
        assert!(requirement_count() > 40);
    }

    #[test]
    fn no_file_of_the_recipe_names_a_registry() {
        for (name, content) in INPUTS
            .iter()
            .chain(&[("enter.sh", ENTER), ("packages", PACKAGES)])
        {
            assert!(!content.contains("://"), "{name} names a host");
        }
    }

    #[test]
    fn packages_are_one_comma_separated_word() {
        let plain = packages(&[]);
        assert!(plain.split(',').any(|name| name == "python3"));
        assert!(!plain.contains(char::is_whitespace) && !plain.contains('#'));
    }

    #[test]
    fn other_packages_are_another_base_and_the_same_ones_the_same() {
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>()
        };
        let tools = names(&["nodejs", "gcc"]);
        assert!(packages(&tools).contains(",gcc,"));
        assert_ne!(key(&tools), key(&[]));
        assert_eq!(
            key(&tools),
            key(&names(&["gcc", "nodejs", "gcc", "python3"]))
        );
    }
}
