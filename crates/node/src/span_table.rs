//! `[[span]]` tables of node.toml are added and taken out; all other text stays as its writer has it.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::{Config, ConfigError, Span};

/// The text with this span, in place of one of the same domain.
///
/// # Errors
///
/// [`ConfigError`]: the text, or the new one, is no node.toml.
///
/// ```
/// use portolan_node::config::Span;
/// use portolan_node::span_table;
/// let path = "node.toml".as_ref();
/// let span = Span {
///     domain: "cameras".to_owned(),
///     local: "cameras".to_owned(),
///     nodes: vec!["*".to_owned()],
///     ports: vec!["upper".to_owned()],
/// };
/// let text = "name = \"hall\" # mine\n";
/// let with = span_table::with(text, path, &span)?;
/// assert_eq!(with, "name = \"hall\" # mine\n\n[[span]]\ndomain = \"cameras\"\nports = [\"upper\"]\n");
/// assert_eq!(span_table::without(&with, path, "cameras")?, text);
/// # Ok::<(), portolan_node::config::ConfigError>(())
/// ```
pub fn with(text: &str, path: &Path, span: &Span) -> Result<String, ConfigError> {
    let mut new = without(text, path, &span.domain)?;
    if !new.is_empty() {
        if !new.ends_with('\n') {
            new.push('\n');
        }
        new.push('\n');
    }
    new += "[[span]]\n";
    new += &format!("domain = {}\n", quoted(&span.domain));
    if span.local != span.domain {
        new += &format!("local = {}\n", quoted(&span.local));
    }
    if span.nodes != ["*"] {
        new += &format!("nodes = {}\n", list(&span.nodes));
    }
    if !span.ports.is_empty() {
        new += &format!("ports = {}\n", list(&span.ports));
    }
    // What cannot be read is not written.
    Config::read(&new, path)?;
    Ok(new)
}

/// The text without the span of this domain; as it is, if there is none.
///
/// # Errors
///
/// As [`with`].
pub fn without(text: &str, path: &Path, domain: &str) -> Result<String, ConfigError> {
    Config::read(text, path)?;
    let Ok(table) = DeTable::parse(text) else {
        return Ok(text.to_owned());
    };
    let spans = table.get_ref().get("span").map(Spanned::get_ref);
    let Some(DeValue::Array(spans)) = spans else {
        return Ok(text.to_owned());
    };
    for span in spans {
        let DeValue::Table(keys) = span.get_ref() else {
            continue;
        };
        let is_it = |value: &DeValue<'_>| matches!(value, DeValue::String(text) if text == domain);
        if !keys.get("domain").is_some_and(|it| is_it(it.get_ref())) {
            continue;
        }
        // From its head to the end of the line of its last value.
        let begin = text[..span.span().start].rfind('\n').map_or(0, |at| at + 1);
        let last = keys.values().map(|value| value.span().end).max();
        let last = last.unwrap_or(span.span().end);
        let end = text[last..]
            .find('\n')
            .map_or(text.len(), |at| last + at + 1);
        let before = text[..begin].trim_end_matches('\n');
        let gap = if before.is_empty() { "" } else { "\n" };
        let new = format!("{before}{gap}{}", &text[end..]);
        // Of tables that are written in one line this is none.
        return Config::read(&new, path).map(|_| new);
    }
    Ok(text.to_owned())
}

/// As TOML has it: its strings have the escapes of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn list(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "# Ours.\nname = \"hall\"\n\n[[span]] # first\nlocal = \"a.1\"\ndomain = \"a\"\n\
        nodes = [\n  \"roof\", # the upper one\n]\n# Of the second.\n[[span]]\ndomain = \"b\"\n";

    fn span(domain: &str) -> Span {
        Span {
            domain: domain.to_owned(),
            local: format!("{domain}.1"),
            nodes: vec!["roof".to_owned(), "attic".to_owned()],
            ports: vec!["up \"per\"".to_owned()],
        }
    }

    #[test]
    fn one_is_taken_out_and_the_rest_stays() {
        let path = "node.toml".as_ref();
        let without_a = without(WHOLE, path, "a").unwrap();
        assert_eq!(
            without_a,
            "# Ours.\nname = \"hall\"\n# Of the second.\n[[span]]\ndomain = \"b\"\n"
        );
        assert_eq!(without(WHOLE, path, "c").unwrap(), WHOLE);
        let none = without(&without_a, path, "b").unwrap();
        assert_eq!(none, "# Ours.\nname = \"hall\"\n# Of the second.\n");
        assert!(without("name = 3", path, "a").is_err());
    }

    #[test]
    fn one_is_put_in_place_of_that_of_the_same_domain() {
        let path = "node.toml".as_ref();
        for text in [WHOLE, "name = \"hall\"", "name = \"hall\"\n"] {
            let new = with(text, path, &span("a")).unwrap();
            let spans = Config::read(&new, path).unwrap().spans;
            assert_eq!(spans.last(), Some(&span("a")), "{new}");
            assert_eq!(spans.iter().filter(|it| it.domain == "a").count(), 1);
            assert_eq!(with(&new, path, &span("a")).unwrap(), new);
        }
    }
}
