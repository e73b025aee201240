//! Escapes text that goes into the page.

/// `text` with what means something in markup made harmless.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Not allowed in markup at all.
            control if control.is_control() && control != '\n' => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}

/// `<tag>text</tag>`, the text made harmless.
pub(super) fn element(tag: &str, text: &str) -> String {
    format!("<{tag}>{}</{tag}>\n", escape(text))
}

/// The same with a class.
pub(super) fn classed(tag: &str, class: &str, text: &str) -> String {
    format!("<{tag} class=\"{class}\">{}</{tag}>\n", escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(
            element("p", "a < b & \"c\"\u{0}"),
            "<p>a &lt; b &amp; &quot;c&quot; </p>\n"
        );
    }
}
