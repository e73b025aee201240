//! What programs and their machine's node say to one another: refused, or read whole.

use portolan_abi::limits::MAX_HEADER;
use portolan_abi::node::{NamesAnswer, NamesQuestion, SpanAnswer, SpanRequest};

pub(super) fn run(data: &[u8]) {
    if let Ok(question) = NamesQuestion::decode(data) {
        assert_eq!(question.encode()[..], *data);
    }
    if let Ok(answer) = NamesAnswer::decode(data) {
        // A header that is longer comes from nobody.
        assert!(data.len() > MAX_HEADER || answer.encode() == data);
    }
    if let Ok(request) = SpanRequest::decode(data) {
        assert_eq!(request.encode(), data);
    }
    if let Ok(answer) = SpanAnswer::decode(data) {
        assert_eq!(answer.encode(), data);
    }
}
