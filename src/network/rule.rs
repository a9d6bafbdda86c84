//! One entry of an allow list.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::target::{Host, NAME_BYTES, Target, parse_port, split_port};

/// Longest text of a rule: a name, `*.` and a port.
const RULE_BYTES: usize = NAME_BYTES + 16;

/// One entry of an allow list: a host, and a port where only that one is meant.
///
/// | rule | allows |
/// |---|---|
/// | `example.com` | that name, every port |
/// | `*.example.com` | names below it (`a.example.com`, `a.b.example.com`), not `example.com` itself |
/// | `example.com:443`, `*.example.com:443` | the same, that port only |
/// | `192.0.2.7`, `192.0.2.7:80`, `[2600::7]:80` | requests for that address |
/// | `192.0.2.0/24`, `2600::/32` | requests for an address in that network, every port |
///
/// Names are compared without regard to case and to a dot at the end; those that are not ASCII are
/// written in punycode. Rules with names are for requests that name the host so, and rules with addresses
/// for requests that give the address: no name is looked up only to see whether its address is in a
/// network, as each lookup carries a name of the sandbox's choice to a name server of anyone's choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    Name(String),
    Below(String),
    Address(IpAddr),
    Network(IpNet),
}

impl Rule {
    /// Whether a request for a target is allowed by this rule.
    pub fn matches(&self, target: &Target) -> bool {
        if self.port.is_some_and(|port| port != target.port) {
            return false;
        }
        match (&self.hosts, &target.host) {
            (Hosts::Name(ours), Host::Name(name)) => ours == name,
            (Hosts::Below(ours), Host::Name(name)) => name
                .strip_suffix(ours.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            (Hosts::Address(ours), Host::Address(address)) => ours == address,
            (Hosts::Network(ours), Host::Address(address)) => ours.contains(address),
            _ => false,
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map_err(|why| {
            let shown: String = text.chars().take(80).collect();
            format!(
                "the rule {shown:?} is not right: {why}; a rule is a host (example.com), what is below it \
                 (*.example.com), either with a port (example.com:443), an address or a network (192.0.2.0/24)"
            )
        })
    }
}

fn parse(text: &str) -> Result<Rule, String> {
    if text.len() > RULE_BYTES {
        return Err(format!("it is longer than {RULE_BYTES} bytes"));
    }
    if text.contains("://") {
        return Err("it names a URL, not a host".into());
    }
    if text.contains('/') {
        let hosts = Hosts::Network(parse_network(text)?);
        return Ok(Rule { hosts, port: None });
    }
    let (host, port) = split_port(text)?;
    let port = port.map(parse_port).transpose()?;
    if host == "*" {
        return Err("every host is the policy \"open\"".into());
    }
    let hosts = if let Some(name) = host.strip_prefix("*.") {
        match Host::parse(name)? {
            Host::Name(name) => Hosts::Below(name),
            Host::Address(_) => return Err("nothing is below an address".into()),
        }
    } else if host.contains('*') {
        return Err("'*' stands for whole parts at the start, as in *.example.com".into());
    } else {
        match Host::parse(host)? {
            Host::Name(name) => Hosts::Name(name),
            Host::Address(address) => Hosts::Address(address),
        }
    };
    Ok(Rule { hosts, port })
}

/// Reads a network, all of whose bits after the prefix are 0.
///
/// # Errors
/// Says what is wrong, and the network that was meant where that is known.
pub(super) fn parse_network(text: &str) -> Result<IpNet, String> {
    let network: IpNet = text
        .parse()
        .map_err(|_| "a network is an address, '/' and the bits of its prefix, without a port")?;
    if network != network.trunc() {
        return Err(format!(
            "the network with that prefix is {}",
            network.trunc()
        ));
    }
    if let IpNet::V6(v6) = network
        && v6.network().to_ipv4_mapped().is_some()
    {
        return Err("mapped addresses are written as the IPv4 ones that they are".into());
    }
    Ok(network)
}

impl TryFrom<String> for Rule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.hosts, self.port) {
            (Hosts::Name(name), _) => f.write_str(name)?,
            (Hosts::Below(name), _) => write!(f, "*.{name}")?,
            (Hosts::Address(IpAddr::V6(address)), Some(_)) => write!(f, "[{address}]")?,
            (Hosts::Address(address), _) => write!(f, "{address}")?,
            (Hosts::Network(network), _) => write!(f, "{network}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(rule: &str, target: &str) -> bool {
        let rule: Rule = rule.parse().unwrap();
        rule.matches(&Target::parse(target, None).unwrap())
    }

    #[test]
    fn a_rule_allows_what_it_names_and_nothing_else() {
        for (rule, target, expected) in [
            ("example.com", "EXAMPLE.com.:443", true),
            ("EXAMPLE.com.", "example.com:8080", true),
            ("example.com", "a.example.com:443", false),
            ("example.com", "example.com.evil.org:443", false),
            ("example.com", "notexample.com:443", false),
            ("*.example.com", "a.example.com:443", true),
            ("*.example.com", "a.b.example.com:443", true),
            ("*.example.com", "example.com:443", false),
            ("*.example.com", "aexample.com:443", false),
            ("example.com:443", "example.com:443", true),
            ("example.com:443", "example.com:80", false),
            ("*.example.com:443", "a.example.com:443", true),
            ("*.example.com:443", "a.example.com:444", false),
            ("93.184.216.34", "93.184.216.34:1", true),
            ("93.184.216.34:80", "93.184.216.34:81", false),
            ("93.184.216.34", "[::ffff:93.184.216.34]:1", true),
            ("::ffff:93.184.216.34", "93.184.216.34:1", true),
            ("2600::7", "[2600:0::7]:9", true),
            ("[2600::7]:80", "[2600::7]:80", true),
            ("[2600::7]:80", "[2600::7]:81", false),
            ("93.184.0.0/16", "93.184.216.34:80", true),
            ("93.184.0.0/16", "93.185.0.1:80", false),
            ("2600::/32", "[2600::1]:80", true),
            ("::/0", "93.184.216.34:80", false),
            ("93.184.0.0/16", "example.com:80", false),
        ] {
            assert_eq!(allows(rule, target), expected, "{rule} for {target}");
        }
    }

    #[test]
    fn a_rule_that_is_not_right_is_named_with_what_would_be() {
        for (text, part) in [
            ("https://example.com/", "URL"),
            ("example.com/path", "prefix"),
            ("10.0.0.1/8", "10.0.0.0/8"),
            ("10.0.0.0/33", "prefix"),
            ("10.0.0.0/8:80", "without a port"),
            ("::ffff:0:0/96", "mapped"),
            ("*", "open"),
            ("*example.com", "*.example.com"),
            ("a.*.com", "*.example.com"),
            ("*.1.2.3.4", "below an address"),
            ("example.com:0", "1 to 65535"),
            ("example.com:", "1 to 65535"),
            ("example.com:https", "1 to 65535"),
            ("bücher.example", "punycode"),
            ("127.1", "four decimal numbers"),
            ("fe80::1%eth0", "zone"),
            ("", "no host"),
            ("user@example.com", "letters"),
            (&"a".repeat(300), "longer"),
        ] {
            let error = text.parse::<Rule>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
            assert!(error.len() < 600 && error.contains("the rule"), "{error}");
        }
    }

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        for text in [
            "example.com",
            "*.example.com:443",
            "192.0.2.0/24",
            "[2600::7]:80",
            "2600::7",
            "2600::/32",
        ] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
    }
}
