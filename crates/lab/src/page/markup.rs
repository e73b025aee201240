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

/// The same, and what stands between backticks as code.
pub(super) fn inline(text: &str) -> String {
    let safe = escape(text);
    let parts: Vec<&str> = safe.split('`').collect();
    // One that has no other is a backtick.
    if parts.len().is_multiple_of(2) {
        return safe;
    }
    let part = |(at, part): (usize, &&str)| match at % 2 {
        0 => (*part).to_owned(),
        _ => format!("<code>{part}</code>"),
    };
    parts.iter().enumerate().map(part).collect()
}

/// `<tag>text</tag>`, the text made harmless.
pub(super) fn element(tag: &str, text: &str) -> String {
    format!("<{tag}>{}</{tag}>\n", inline(text))
}

/// The same with a class.
pub(super) fn classed(tag: &str, class: &str, text: &str) -> String {
    format!("<{tag} class=\"{class}\">{}</{tag}>\n", inline(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_backticks_is_code() {
        assert_eq!(inline("run `a<b` and c"), "run <code>a&lt;b</code> and c");
        assert_eq!(inline("a ` b"), "a ` b");
        assert_eq!(inline("`a``b`"), "<code>a</code><code>b</code>");
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(
            element("p", "a < b & \"c\"\u{0}"),
            "<p>a &lt; b &amp; &quot;c&quot; </p>\n"
        );
    }
}
