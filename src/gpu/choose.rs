//! Which GPUs a sandbox asks for, and which those are.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Device;

/// Names in a wish, and characters of one.
const MAX_NAMES: usize = 64;
const MAX_NAME_CHARS: usize = 128;

/// Which GPUs a sandbox is to have: `"all"`, a number of them, or a list of indices and UUIDs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub enum Wish {
    /// Every one that there is.
    All,
    /// As many, whichever are free; 0 is none.
    Count(usize),
    /// These: an index (`"0"`), a UUID (`"GPU-…"`), or a part's (`"MIG-…"`, `"0:1"`).
    Named(Vec<String>),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Wire {
    Count(u32),
    Word(String),
    List(Vec<Name>),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Name {
    Index(u32),
    Text(String),
}

const EXPECTED: &str =
    "gpus is \"all\", a number, or a list of indices and UUIDs such as [0, \"GPU-…\"]";

impl TryFrom<Wire> for Wish {
    type Error = String;

    fn try_from(wire: Wire) -> Result<Self, String> {
        match wire {
            Wire::Count(count) => Ok(Self::Count(count as usize)),
            Wire::Word(word) if word == "all" => Ok(Self::All),
            Wire::Word(_) => Err(EXPECTED.into()),
            Wire::List(names) => Self::named(names.into_iter().map(|name| match name {
                Name::Index(index) => index.to_string(),
                Name::Text(text) => text,
            })),
        }
    }
}

impl From<Wish> for Wire {
    fn from(wish: Wish) -> Self {
        match wish {
            Wish::All => Self::Word("all".into()),
            Wish::Count(count) => Self::Count(u32::try_from(count).unwrap_or(u32::MAX)),
            Wish::Named(names) => Self::List(names.into_iter().map(Name::Text).collect()),
        }
    }
}

/// As the command line has it: `all`, `2` (a number of them), `GPU-…,GPU-…` or `device=0,1`.
impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (list, only_names) = match text.strip_prefix("device=") {
            Some(list) => (list, true),
            None => (text, false),
        };
        if list == "all" {
            return Ok(Self::All);
        }
        match list.parse() {
            Ok(count) if !only_names => Ok(Self::Count(count)),
            _ => Self::named(list.split(',').map(|name| name.trim().to_owned())),
        }
    }
}

impl Wish {
    fn named(names: impl Iterator<Item = String>) -> Result<Self, String> {
        let names: Vec<String> = names.take(MAX_NAMES + 1).collect();
        let right = |name: &String| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-:/._".contains(c);
            !name.is_empty() && name.len() <= MAX_NAME_CHARS && name.chars().all(plain)
        };
        if names.len() > MAX_NAMES || !names.iter().all(right) {
            return Err(EXPECTED.into());
        }
        Ok(Self::Named(names))
    }

    /// Whether it asks for none.
    pub fn is_none(&self) -> bool {
        match self {
            Self::All => false,
            Self::Count(count) => *count == 0,
            Self::Named(names) => names.is_empty(),
        }
    }

    /// The devices that it names, each once, of `devices`, where `free` tells which may be given.
    ///
    /// # Errors
    /// Why it cannot be granted.
    pub fn choose(
        &self,
        devices: &[Device],
        free: impl Fn(&Device) -> bool,
    ) -> Result<Vec<Device>, Fault> {
        let chosen: Vec<&Device> = match self {
            Self::All => devices.iter().collect(),
            Self::Count(count) => {
                if *count > devices.len() {
                    return Err(Fault::TooFew(devices.len()));
                }
                let mut some: Vec<&Device> = devices.iter().filter(|d| free(d)).collect();
                if some.len() < *count {
                    return Err(Fault::Taken(some.len()));
                }
                some.truncate(*count);
                some
            }
            Self::Named(names) => {
                let mut some: Vec<&Device> = Vec::new();
                for name in names {
                    let device = find(devices, name)?;
                    if !some.contains(&device) {
                        some.push(device);
                    }
                }
                some
            }
        };
        if let Some(taken) = chosen.iter().find(|device| !free(device)) {
            return Err(Fault::InUse(taken.id().to_owned()));
        }
        Ok(chosen.into_iter().cloned().collect())
    }
}

fn find<'a>(devices: &'a [Device], name: &str) -> Result<&'a Device, Fault> {
    // Specifications may call the first `gpu0` instead of `0`, and its first part `mig0:0`.
    let kind = if name.contains(':') { "mig" } else { "gpu" };
    let is_index = name.starts_with(|c: char| c.is_ascii_digit());
    let is_called = |device: &&Device| {
        let same = |known: &String| {
            known.eq_ignore_ascii_case(name) || (is_index && known.strip_prefix(kind) == Some(name))
        };
        device.names.iter().any(same)
    };
    devices
        .iter()
        .find(is_called)
        .ok_or_else(|| Fault::Unknown {
            name: name.to_owned(),
            known: devices.iter().map(described).collect(),
        })
}

/// `0 (GPU-…)`.
fn described(device: &Device) -> String {
    match device.names.as_slice() {
        [name] => name.clone(),
        [first, ..] => format!("{first} ({})", device.id()),
        [] => String::new(),
    }
}

/// Why a wish cannot be granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No device has that name.
    Unknown {
        /// As asked.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// More than there are: so many.
    TooFew(usize),
    /// So many are free.
    Taken(usize),
    /// Others have this one.
    InUse(String),
}
