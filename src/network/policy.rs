//! What a sandbox may reach.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::refusal::{Code, Refusal};
use super::rule::Rule;
use super::target::Target;

/// Rules of one policy.
pub const MAX_RULES: usize = 256;
/// Where mail is handed in (RFC 5321, RFC 8314, RFC 6409). [`Policy::Open`] does not reach these, as
/// whoever sends mail from a host that was lent to them ruins its name; a rule that allows one does.
const MAIL_PORTS: [u16; 3] = [25, 465, 587];
/// Rules that a refusal names.
const SHOWN_RULES: usize = 8;

/// What a sandbox may reach. In JSON and TOML: `"none"`, `"packages"`, `"open"` or
/// `{"allow": ["host", "*.host", "host:port", "192.0.2.0/24"], "packages": false}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(into = "Wire")]
pub enum Policy {
    /// Nothing.
    #[default]
    None,
    /// The package index, through the gateway.
    Packages,
    /// These, and nothing else. What is not public stays unreachable, but for `network.private_cidrs`.
    Allow {
        /// What may be reached; at most [`MAX_RULES`].
        rules: Vec<Rule>,
        /// And the package index.
        packages: bool,
    },
    /// Every public address (and `network.private_cidrs`) but for the ports of mail, and the package
    /// index.
    Open,
}

impl Policy {
    /// Whether the package gateway answers.
    pub fn packages(&self) -> bool {
        matches!(
            self,
            Self::Packages | Self::Open | Self::Allow { packages: true, .. }
        )
    }

    /// Decides on a target by its words alone: no name is looked up that could not be reached.
    ///
    /// # Errors
    /// The refusal, with what is allowed instead.
    pub fn check(&self, target: &Target) -> Result<(), Refusal> {
        let why = match self {
            Self::Allow { rules, .. } if rules.iter().any(|rule| rule.matches(target)) => {
                return Ok(());
            }
            Self::Open if !MAIL_PORTS.contains(&target.port) => return Ok(()),
            Self::Open => format!(
                "the network policy \"open\" does not allow the ports of mail {MAIL_PORTS:?}"
            ),
            _ => self.to_string(),
        };
        Err(Refusal::of_target(Code::Policy, target, &why))
    }
}

/// A sentence that says what is allowed.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("the sandbox's network policy is \"none\": nothing can be reached"),
            Self::Packages => f.write_str(
                "the sandbox's network policy is \"packages\": only the package index can be reached",
            ),
            Self::Open => f.write_str(
                "the sandbox's network policy is \"open\": public addresses and the package index can be reached",
            ),
            Self::Allow { rules, packages } => {
                f.write_str("the sandbox's network policy allows only ")?;
                for (index, rule) in rules.iter().take(SHOWN_RULES).enumerate() {
                    write!(f, "{}{rule}", if index == 0 { "" } else { ", " })?;
                }
                if rules.len() > SHOWN_RULES {
                    write!(f, " and {} more", rules.len() - SHOWN_RULES)?;
                }
                match (rules.is_empty(), packages) {
                    (true, true) => f.write_str("the package index"),
                    (true, false) => f.write_str("nothing"),
                    (false, true) => f.write_str(" and the package index"),
                    (false, false) => Ok(()),
                }
            }
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Wire {
    Word(&'static str),
    Allow(Allow),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allow {
    allow: Vec<Rule>,
    #[serde(default)]
    packages: bool,
}

impl From<Policy> for Wire {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::None => Self::Word("none"),
            Policy::Packages => Self::Word("packages"),
            Policy::Open => Self::Word("open"),
            Policy::Allow { rules, packages } => Self::Allow(Allow {
                allow: rules,
                packages,
            }),
        }
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PolicyVisitor)
    }
}

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            r#""none", "packages", "open" or {"allow": ["example.com"], "packages": false}"#,
        )
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Policy, E> {
        match word {
            "none" => Ok(Policy::None),
            "packages" => Ok(Policy::Packages),
            "open" => Ok(Policy::Open),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
        let Allow { allow, packages } = Allow::deserialize(MapAccessDeserializer::new(map))?;
        if allow.len() > MAX_RULES {
            let length = allow.len();
            let text = format!("allow has {length} rules: at most {MAX_RULES} are possible");
            return Err(A::Error::custom(text));
        }
        Ok(Policy::Allow {
            rules: allow,
            packages,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(json: &str) -> Result<Policy, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    fn refuses(json: &str, target: &str) -> Option<String> {
        let target = Target::parse(target, None).unwrap();
        policy(json)
            .unwrap()
            .check(&target)
            .err()
            .map(|refusal| refusal.line().to_owned())
    }

    #[test]
    fn a_policy_is_read_and_written() {
        for json in [
            r#""none""#,
            r#""packages""#,
            r#""open""#,
            r#"{"allow":["example.com","*.example.org:443","192.0.2.0/24"],"packages":true}"#,
        ] {
            let read = policy(json).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), json);
        }
        assert!(!policy(r#"{"allow":[]}"#).unwrap().packages());
        let config: crate::config::Config =
            toml::from_str("[network]\ndefault = { allow = [\"example.com\"] }").unwrap();
        assert!(matches!(config.network.default, Policy::Allow { .. }));
    }

    #[test]
    fn an_error_names_what_is_wrong() {
        let many = format!(r#"{{"allow":[{}]}}"#, vec![r#""a.example""#; 257].join(","));
        for (json, part) in [
            (r#""opne""#, r#""none", "packages", "open""#),
            ("1", r#""none", "packages", "open""#),
            ("null", r#""none", "packages", "open""#),
            (r#"{"allow":["a/b"]}"#, "a/b"),
            (r#"{"allow":"a"}"#, "sequence"),
            (r#"{"packages":true}"#, "allow"),
            (r#"{"allow":[],"deny":[]}"#, "deny"),
            (&many, "256"),
        ] {
            let error = policy(json).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_allowed() {
        let line = |json, target| refuses(json, target).unwrap();
        assert!(line(r#""none""#, "a.example:80").contains("\"none\""));
        assert!(line(r#""packages""#, "a.example:80").contains("only the package index"));
        assert!(line(r#"{"allow":["b.example"]}"#, "a.example:80").contains("only b.example"));
        assert!(line(r#""open""#, "a.example:25").contains("mail"));
        assert_eq!(refuses(r#""open""#, "a.example:80"), None);
        assert_eq!(refuses(r#"{"allow":["b.example"]}"#, "b.example:25"), None);
    }
}
