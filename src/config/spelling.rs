//! Names that another project's configuration has for our keys: those that mean just one thing are
//! taken, others are refused with the name of what there is instead.

use toml::{Table, Value};

/// Section and key as that project has them, and ours.
const NAMES: [(&str, &str, &str, &str); 2] = [
    ("logging", "log_file", "logging", "file"),
    ("mirror", "pypi_index_url", "packages", "index_url"),
];

/// Puts everything under our names; whether anything had another.
///
/// # Errors
/// A key has both names, or one that means nothing here.
pub(super) fn translate(table: &mut Table) -> Result<bool, String> {
    let mut any = false;
    if table.contains_key("docker") {
        return Err(
            "[docker]: there are no containers here, so leave it out; packages that every sandbox \
             is to have make a mirror (POST /mirrors), and memory and the like are in [limits]"
                .into(),
        );
    }
    for (section, name, our_section, ours) in NAMES {
        if let Some(value) = take(table, section, name) {
            put(
                table,
                our_section,
                ours,
                value,
                &format!("{section}.{name}"),
            )?;
            any = true;
        }
    }
    if let Some(structured) = take(table, "logging", "use_structured_format") {
        let format = match structured {
            Value::Boolean(true) => "json",
            Value::Boolean(false) => "text",
            _ => return Err("logging.use_structured_format must be true or false".into()),
        };
        let theirs = "logging.use_structured_format";
        put(table, "logging", "format", format.into(), theirs)?;
        any = true;
    }
    any |= listen(table)?;
    match table.get("mirror") {
        Some(Value::Table(left)) if left.is_empty() => {
            table.remove("mirror");
        }
        Some(_) => {
            return Err(
                "[mirror]: only pypi_index_url is known there; mirrors are configured in [mirrors], \
                 the package index in [packages]"
                    .into(),
            );
        }
        None => {}
    }
    Ok(any)
}

/// `server.host` and `server.port`, which are one here.
fn listen(table: &mut Table) -> Result<bool, String> {
    let host = take(table, "server", "host");
    let port = take(table, "server", "port");
    if host.is_none() && port.is_none() {
        return Ok(false);
    }
    let host = match host {
        None => "127.0.0.1".to_owned(),
        Some(Value::String(host)) if host == "localhost" => "127.0.0.1".to_owned(),
        Some(Value::String(host)) => host,
        Some(_) => return Err("server.host must be an address in quotes".into()),
    };
    let port = match port {
        None => 8000,
        Some(Value::Integer(port)) if (0..=65535).contains(&port) => port,
        Some(_) => return Err("server.port must be 0 to 65535".into()),
    };
    let address: std::net::IpAddr = (host.parse())
        .map_err(|_| format!("server.host: {host:?} is not an address such as 127.0.0.1"))?;
    let listen = std::net::SocketAddr::new(address, port as u16).to_string();
    put(
        table,
        "server",
        "listen",
        listen.into(),
        "server.host and server.port",
    )?;
    Ok(true)
}

fn take(table: &mut Table, section: &str, name: &str) -> Option<Value> {
    table.get_mut(section)?.as_table_mut()?.remove(name)
}

fn put(
    table: &mut Table,
    section: &str,
    name: &str,
    value: Value,
    theirs: &str,
) -> Result<(), String> {
    let section_table = table
        .entry(section)
        .or_insert_with(|| Table::new().into())
        .as_table_mut()
        .ok_or_else(|| format!("{section} must be a table"))?;
    if section_table.contains_key(name) {
        return Err(format!(
            "{section}.{name} is given twice: {theirs} is the same"
        ));
    }
    section_table.insert(name.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, LogFormat};

    fn read(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).expect("a file can be written");
        Config::from_file(&path)
    }

    #[test]
    fn the_second_seeds_file_means_what_it_meant() {
        let config = read(
            "[server]\nhost = '0.0.0.0'\nport = 8123\n\
             [logging]\nlevel = 'INFO'\nlog_file = './logs/x.log'\nuse_structured_format = true\n\
             [mirror]\npypi_index_url = 'http://127.0.0.1:9/simple'\n",
        );
        let config = config.expect("it is understood");
        assert_eq!(config.server.listen.to_string(), "0.0.0.0:8123");
        assert_eq!(
            config.logging.file.as_deref(),
            Some("./logs/x.log".as_ref())
        );
        assert_eq!(config.logging.format, LogFormat::Json);
        let index = config.packages.index_url.as_deref();
        assert_eq!(index, Some("http://127.0.0.1:9/simple"));
        let config = read("server.port = 9000").expect("it is understood");
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:9000");
    }

    #[test]
    fn what_has_two_meanings_or_none_is_refused_by_name() {
        for (text, named) in [
            ("[docker]\ndefault_image = 'x'", "[docker]"),
            ("[mirror]\nmax = 3", "[mirrors]"),
            (
                "server = { port = 1, listen = '127.0.0.1:2' }",
                "server.listen is given twice",
            ),
            (
                "logging = { log_file = 'a', file = 'b' }",
                "logging.file is given twice",
            ),
            ("server.host = 'somewhere'", "server.host"),
            ("server.port = 70000", "server.port"),
            ("logging.use_structured_format = 1", "use_structured_format"),
            ("server = { port = 1, bogus = 2 }", "bogus"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
