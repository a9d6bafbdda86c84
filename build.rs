//! Takes the two files of Swagger UI that `/docs` needs out of the archive that a crate of the registry
//! carries, and compresses them: nothing is downloaded, and nothing of it is kept in the repository.

use std::env;
use std::fs;
use std::io::{Cursor, Read as _, Write as _};
use std::path::Path;

use flate2::{Compression, GzBuilder};
use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED;
use zip::ZipArchive;

const FILES: [&str; 2] = ["swagger-ui-bundle.js", "swagger-ui.css"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").expect("cargo names a directory");
    let mut archive = ZipArchive::new(Cursor::new(SWAGGER_UI_VENDORED)).expect("it is an archive");
    for file in FILES {
        let suffix = format!("/dist/{file}");
        let found = (0..archive.len()).find(|&at| {
            let entry = archive.by_index(at).ok();
            entry.is_some_and(|entry| entry.name().is_ok_and(|name| name.ends_with(&suffix)))
        });
        let mut plain = Vec::new();
        let mut entry = archive
            .by_index(found.expect("the archive has the file"))
            .expect("it can be read");
        entry.read_to_end(&mut plain).expect("it can be unpacked");
        // No time in the header: the same input gives the same binary.
        let mut packed = GzBuilder::new().write(Vec::new(), Compression::best());
        packed.write_all(&plain).expect("a vector takes everything");
        let packed = packed.finish().expect("a vector takes everything");
        fs::write(Path::new(&out).join(format!("{file}.gz")), packed).expect("it can be written");
    }
}
