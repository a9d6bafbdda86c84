//! What a sandbox may reach.

use serde::{Deserialize, Serialize};

/// What a sandbox may reach. In JSON and TOML: `"none"`, `"packages"`, `"open"` or
/// `{"allow": ["host", "*.host", "host:port", "192.0.2.0/24"], "packages": false}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Wire", into = "Wire")]
pub enum Policy {
    /// Nothing.
    #[default]
    None,
    /// The package index, through the gateway.
    Packages,
    /// These, and nothing else.
    Allow {
        /// What may be reached.
        rules: Vec<Rule>,
        /// And the package index.
        packages: bool,
    },
    /// Every public address, and the package index.
    Open,
}

/// One entry of an allow list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rule(pub String);

impl Policy {
    /// Whether the package gateway answers.
    pub fn packages(&self) -> bool {
        matches!(
            self,
            Self::Packages | Self::Open | Self::Allow { packages: true, .. }
        )
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Wire {
    Word(Word),
    Allow(Allow),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    None,
    Packages,
    Open,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allow {
    allow: Vec<Rule>,
    #[serde(default)]
    packages: bool,
}

impl From<Wire> for Policy {
    fn from(wire: Wire) -> Self {
        match wire {
            Wire::Word(Word::None) => Self::None,
            Wire::Word(Word::Packages) => Self::Packages,
            Wire::Word(Word::Open) => Self::Open,
            Wire::Allow(Allow { allow, packages }) => Self::Allow {
                rules: allow,
                packages,
            },
        }
    }
}

impl From<Policy> for Wire {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::None => Self::Word(Word::None),
            Policy::Packages => Self::Word(Word::Packages),
            Policy::Open => Self::Word(Word::Open),
            Policy::Allow { rules, packages } => Self::Allow(Allow {
                allow: rules,
                packages,
            }),
        }
    }
}
