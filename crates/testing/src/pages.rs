//! Sections of pages that tests compute: what is between `<!-- NAME -->` and `<!-- end -->`.

use std::path::{Path, PathBuf};

/// Returns the path of a page in `docs`.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// Returns a section of a page.
pub fn section<'a>(page: &'a str, name: &str) -> &'a str {
    let (start, len) = place(page, name);
    &page[start..start + len]
}

/// Checks that a page in `docs` has these sections, given as pairs of their names and contents, or
/// writes them if `JACKALOPE_WRITE_PAGES` is set. `package` has the test.
pub fn check(page: &str, sections: &[(&str, String)], package: &str) {
    let path = path(page);
    let found = std::fs::read_to_string(&path).unwrap();
    let mut expected = found.clone();
    for (name, content) in sections {
        let (start, len) = place(&expected, name);
        expected.replace_range(start..start + len, content);
    }
    if std::env::var_os("JACKALOPE_WRITE_PAGES").is_some() {
        std::fs::write(path, expected).unwrap();
    } else {
        let hint = format!("hint: JACKALOPE_WRITE_PAGES=1 cargo test -p {package} page");
        assert!(found == expected, "docs/{page} is not what {package} computes\n{hint}");
    }
}

/// Returns where the content of a section begins, and its length in bytes.
fn place(page: &str, name: &str) -> (usize, usize) {
    let begin = format!("<!-- {name} -->\n");
    let start = page.find(&begin).unwrap_or_else(|| panic!("{begin}")) + begin.len();
    (start, page[start..].find("<!-- end -->").expect("an end"))
}
