//! Derives `portolan::channel::Payload`.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Data, DataEnum, DeriveInput, Error, Fields, Ident, Meta, Token, Type, parse_quote,
};

/// The numbers that say which variant of an enum it is.
const NUMBERS: [&str; 10] = [
    "u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize",
];

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream, Error> {
    if let Some(lifetime) = input.generics.lifetimes().next() {
        return Err(Error::new_spanned(
            lifetime,
            "a sample lies in memory of its own, and borrows nothing: use arrays, or publish a \
             `portolan::structure::Structure`",
        ));
    }
    let krate = quote!(::portolan::channel);
    let repr = Repr::of(input)?;
    let parts = match &input.data {
        Data::Struct(data) => record(&data.fields, &repr, input, &krate)?,
        Data::Enum(data) => choice(data, &repr, input, &krate)?,
        Data::Union(data) => {
            return Err(Error::new_spanned(
                data.union_token,
                "a union is not published: nobody can say which of its fields is meant",
            ));
        }
    };
    let Parts {
        hash,
        whole,
        any,
        check,
        begin,
        scrub,
    } = parts;
    let (name, text) = (&input.ident, input.ident.to_string());
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#krate::Plain));
    }
    let (params, _, bounds) = generics.split_for_impl();
    let (_, ours, _) = input.generics.split_for_impl();
    let (bytes, at) = (ours_of("bytes"), ours_of("at"));
    Ok(quote! {
        // SAFETY:
        // - the layout is that of `repr(C)`, of a number, or transparent: padding is what lies
        //   between the fields, in their order, and behind them;
        // - each field is looked at, made and scrubbed as its own type does it, and so is the
        //   number of the variant;
        // - every field is `Plain`, or the functions would not compile: no pointers, no cells.
        #[automatically_derived]
        unsafe impl #params #krate::Plain for #name #ours #bounds {
            const HASH: u64 = ::portolan::rpc::Hash::new().text(#text) #hash .finish();
            const WHOLE: bool = #whole;
            const ANY: bool = #any;

            fn check(#bytes: &[u8]) -> bool {
                let mut #at = 0_usize;
                let _ = (&#bytes, &mut #at);
                #check
            }

            fn begin(#bytes: &mut [u8]) {
                let mut #at = 0_usize;
                let _ = (&#bytes, &mut #at);
                #begin
            }

            fn scrub(#bytes: &mut [u8]) {
                let mut #at = 0_usize;
                #scrub
                #bytes[#at..].fill(0);
            }
        }
    })
}

/// What the implementation consists of.
struct Parts {
    hash: TokenStream,
    whole: TokenStream,
    any: TokenStream,
    check: TokenStream,
    begin: TokenStream,
    scrub: TokenStream,
}

/// A variable of ours.
fn ours_of(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// How a type lies in memory, as far as it says so.
#[derive(Default)]
struct Repr {
    c: bool,
    transparent: bool,
    number: Option<Ident>,
}

impl Repr {
    fn of(input: &DeriveInput) -> Result<Self, Error> {
        let mut found = Self::default();
        for attribute in input.attrs.iter().filter(|a| a.path().is_ident("repr")) {
            found.add(attribute)?;
        }
        Ok(found)
    }

    fn add(&mut self, attribute: &Attribute) -> Result<(), Error> {
        let parse = Punctuated::<Meta, Token![,]>::parse_terminated;
        for meta in attribute.parse_args_with(parse)? {
            let path = meta.path();
            if path.is_ident("C") {
                self.c = true;
            } else if path.is_ident("transparent") {
                self.transparent = true;
            } else if path.is_ident("packed") {
                return Err(Error::new_spanned(
                    meta,
                    "a sample is read by reference, which a packed type's fields have none of: \
                     leave `packed` out",
                ));
            } else if let Some(number) = path.get_ident()
                && NUMBERS.iter().any(|n| number == n)
            {
                self.number = Some(number.clone());
            }
        }
        Ok(())
    }
}

fn types(fields: &Fields) -> Vec<&Type> {
    fields.iter().map(|field| &field.ty).collect()
}

/// Names and types, for the hash.
fn described(fields: &Fields, krate: &TokenStream) -> TokenStream {
    let each = fields.iter().map(|field| {
        let name = field.ident.as_ref().map(ToString::to_string);
        let (name, ty) = (name.unwrap_or_default(), &field.ty);
        quote!(.text(#name).word(<#ty as #krate::Plain>::HASH))
    });
    quote!(#(#each)*)
}

fn record(
    fields: &Fields,
    repr: &Repr,
    input: &DeriveInput,
    krate: &TokenStream,
) -> Result<Parts, Error> {
    if !repr.c && !repr.transparent {
        return Err(Error::new_spanned(
            &input.ident,
            "where the fields lie is each compiler's own affair, unless the type says: write \
             `#[repr(C)]` above it",
        ));
    }
    let types = types(fields);
    let (bytes, at) = (ours_of("bytes"), ours_of("at"));
    Ok(Parts {
        hash: described(fields, krate),
        whole: quote! {
            0 #(+ ::core::mem::size_of::<#types>())* == ::core::mem::size_of::<Self>()
                #(&& <#types as #krate::Plain>::WHOLE)*
        },
        any: quote!(true #(&& <#types as #krate::Plain>::ANY)*),
        check: quote!(true #(&& #krate::fields::check::<#types>(#bytes, &mut #at))*),
        begin: quote!(#(#krate::fields::begin::<#types>(#bytes, &mut #at);)*),
        scrub: quote!(#(#krate::fields::scrub::<#types>(#bytes, &mut #at);)*),
    })
}

fn choice(
    data: &DataEnum,
    repr: &Repr,
    input: &DeriveInput,
    krate: &TokenStream,
) -> Result<Parts, Error> {
    let Some(number) = repr.number.as_ref().filter(|_| !repr.c) else {
        return Err(Error::new_spanned(
            &input.ident,
            "which number stands for which variant is each compiler's own affair, unless the \
             type says: write `#[repr(u8)]`, or another number, above it, and no `C`",
        ));
    };
    if data.variants.is_empty() {
        return Err(Error::new_spanned(
            &input.ident,
            "an enum without variants has no value that could be published",
        ));
    }
    let (bytes, at) = (ours_of("bytes"), ours_of("at"));
    let (mut numbers, mut hash) = (Vec::new(), quote!(.text(stringify!(#number))));
    let (mut wholes, mut checks, mut scrubs) = (Vec::new(), Vec::new(), Vec::new());
    let constant = |index: usize| format_ident!("VARIANT_{}", index, span = Span::mixed_site());
    for (index, variant) in data.variants.iter().enumerate() {
        let named = constant(index);
        let value = match (&variant.discriminant, index.checked_sub(1).map(constant)) {
            (Some((_, said)), _) => quote!(#said),
            (None, None) => quote!(0),
            (None, Some(before)) => quote!(#before + 1),
        };
        numbers.push(quote!(const #named: #number = #value;));
        let name = variant.ident.to_string();
        let fields = described(&variant.fields, krate);
        hash.extend(quote!(.text(#name).word({ #(#numbers)* #named as u64 }) #fields .text("|")));
        let types = types(&variant.fields);
        wholes.push(quote! {
            && ::core::mem::size_of::<#number>() #(+ ::core::mem::size_of::<#types>())*
                == ::core::mem::size_of::<Self>()
                #(&& <#types as #krate::Plain>::WHOLE)*
        });
        checks
            .push(quote!(#named => true #(&& #krate::fields::check::<#types>(#bytes, &mut #at))*,));
        scrubs.push(quote!(#named => { #(#krate::fields::scrub::<#types>(#bytes, &mut #at);)* }));
    }
    let which = quote! {
        #[allow(clippy::identity_op, dead_code)]
        const _: () = ();
        #(#[allow(dead_code)] #numbers)*
        #at = ::core::mem::size_of::<#number>();
    };
    let read = quote! {
        #bytes
            .first_chunk()
            .map_or(0, |which| <#number>::from_ne_bytes(*which))
    };
    let first = constant(0);
    let first_types = data.variants.first().map(|v| types(&v.fields));
    let first_types = first_types.unwrap_or_default();
    Ok(Parts {
        hash,
        whole: quote!(true #(#wholes)*),
        any: quote!(false),
        check: quote! {
            #which
            match #read {
                #(#checks)*
                _ => false,
            }
        },
        begin: quote! {
            #which
            #bytes[..#at].copy_from_slice(&#first.to_ne_bytes());
            #(#krate::fields::begin::<#first_types>(#bytes, &mut #at);)*
        },
        scrub: quote! {
            #which
            match #read {
                #(#scrubs)*
                _ => {}
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(input: &DeriveInput) -> String {
        expand(input).unwrap_err().to_string()
    }

    #[test]
    fn what_has_no_layout_of_its_own_is_refused_with_what_to_write() {
        let why = refused(&parse_quote!(
            struct Point {
                x: u32,
            }
        ));
        assert!(why.contains("write `#[repr(C)]`"), "{why}");
        for input in [
            parse_quote!(
                enum Kind {
                    Ship,
                }
            ),
            parse_quote!(
                #[repr(C)]
                enum Kind {
                    Ship,
                }
            ),
            parse_quote!(
                #[repr(C, u8)]
                enum Kind {
                    Ship(u64),
                }
            ),
        ] {
            let why = refused(&input);
            assert!(why.contains("write `#[repr(u8)]`"), "{why}");
        }
        let why = refused(&parse_quote!(
            #[repr(C, packed)]
            struct Point {
                x: u32,
            }
        ));
        assert!(why.contains("leave `packed` out"), "{why}");
        let why = refused(&parse_quote!(
            #[repr(C)]
            struct Line<'a> {
                text: &'a str,
            }
        ));
        assert!(why.contains("borrows nothing"), "{why}");
        let why = refused(&parse_quote!(
            #[repr(u8)]
            enum Never {}
        ));
        assert!(why.contains("without variants"), "{why}");
        let fine: DeriveInput = parse_quote!(
            #[repr(C, align(64))]
            struct Lines<T, const N: usize> {
                of: [T; N],
            }
        );
        assert!(expand(&fine).is_ok());
    }
}
