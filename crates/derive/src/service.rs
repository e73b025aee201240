//! Expands the attribute `portolan::service`.
//!
//! The names in a service are its author's to choose: no trait, method or argument may meet
//! one of ours, but for the methods that every client has (`connect`, `connect_with`,
//! `within`, `stub`, and two for each of the trait's). Our variables are therefore of *mixed
//! site*, which no argument is; types and constants, which have no such thing, get names that
//! nobody chooses; and what is Rust's is named by its whole path.
//!
//! A type that cannot travel is one error, and not one at each use: each argument and result has
//! a name (`portolan::rpc::carried`), which alone says of what type it is.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use std::collections::HashMap;
use syn::ext::IdentExt;
use syn::{
    Error, FnArg, GenericArgument, Ident, ItemTrait, Lifetime, Pat, PathArguments, ReturnType,
    TraitItem, TraitItemFn, Type,
};

/// One method of a service.
struct Method {
    name: Ident,
    constant: Ident,
    docs: Vec<syn::Attribute>,
    /// Where it is there at all.
    cfgs: Vec<syn::Attribute>,
    arguments: Vec<(Ident, Type)>,
    /// The names of the arguments' types.
    carried: Vec<Ident>,
    /// What it returns; `()` if it says nothing.
    result: Type,
    /// The name of that type.
    returned: Ident,
    /// If that is a `Result`: its two types.
    fallible: Option<(Type, Type)>,
    asynchronous: bool,
    one_way: bool,
    best_effort: bool,
    unchecked: bool,
}

pub(crate) fn expand(mut item: ItemTrait) -> Result<TokenStream, Error> {
    if !item.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &item.generics,
            "a service has no parameters: its clients would not know them",
        ));
    }
    let mut methods = Vec::new();
    let mut names = Names::new(&item.ident);
    for member in &mut item.items {
        match member {
            TraitItem::Fn(function) => methods.push(method(function, &mut names)?),
            other => {
                return Err(Error::new_spanned(
                    other,
                    "a service has methods, and nothing else",
                ));
            }
        }
    }
    let client = client(&item, &methods);
    let service = service(&item, &methods);
    let names = names.given;
    Ok(quote! { #item #names #service #client })
}

/// The names that types have been given.
struct Names {
    prefix: Ident,
    /// By what they say, and where they are there at all.
    known: HashMap<String, Ident>,
    methods: usize,
    given: TokenStream,
}

impl Names {
    fn new(service: &Ident) -> Self {
        Self {
            prefix: format_ident!("__{}", service.unraw()),
            known: HashMap::new(),
            methods: 0,
            given: TokenStream::new(),
        }
    }

    /// The name of a type of an argument, or of a result; one for all uses of it.
    fn of(&mut self, ty: &Type, cfgs: &[syn::Attribute], is_result: bool) -> Ident {
        let key = quote!(#(#cfgs)* #is_result #ty).to_string();
        if let Some(name) = self.known.get(&key) {
            return name.clone();
        }
        let name = format_ident!("{}{}", self.prefix, self.known.len());
        let krate = quote!(::portolan::rpc::carried);
        let says = if is_result {
            quote!(impl #krate::Returns for #name { type Value = #ty; })
        } else {
            let mut ty = ty.clone();
            let lent = Lifetime::new("'portolan", Span::mixed_site());
            name_lifetimes(&mut ty, &lent);
            quote!(impl #krate::Carries for #name { type Value<#lent> = #ty; })
        };
        self.given.extend(quote! {
            #(#cfgs)*
            #[doc(hidden)]
            #[allow(non_camel_case_types)]
            enum #name {}
            #(#cfgs)*
            #says
        });
        self.known.insert(key, name.clone());
        name
    }
}

/// Gives the lifetimes in a type that have no name one.
fn name_lifetimes(ty: &mut Type, name: &Lifetime) {
    match ty {
        Type::Reference(reference) => {
            if reference.lifetime.as_ref().is_none_or(|l| l.ident == "_") {
                reference.lifetime = Some(name.clone());
            }
            name_lifetimes(&mut reference.elem, name);
        }
        Type::Path(path) => {
            for segment in &mut path.path.segments {
                let PathArguments::AngleBracketed(arguments) = &mut segment.arguments else {
                    continue;
                };
                for argument in &mut arguments.args {
                    match argument {
                        GenericArgument::Type(ty) => name_lifetimes(ty, name),
                        GenericArgument::Lifetime(l) if l.ident == "_" => *l = name.clone(),
                        _ => {}
                    }
                }
            }
        }
        Type::Tuple(tuple) => tuple
            .elems
            .iter_mut()
            .for_each(|ty| name_lifetimes(ty, name)),
        Type::Array(array) => name_lifetimes(&mut array.elem, name),
        Type::Slice(slice) => name_lifetimes(&mut slice.elem, name),
        Type::Paren(inner) => name_lifetimes(&mut inner.elem, name),
        Type::Group(inner) => name_lifetimes(&mut inner.elem, name),
        _ => {}
    }
}

fn method(function: &mut TraitItemFn, names: &mut Names) -> Result<Method, Error> {
    let index = names.methods;
    names.methods += 1;
    let signature = &function.sig;
    if !signature.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &signature.generics,
            "a method of a service has no parameters: its clients would not know them",
        ));
    }
    let mut inputs = signature.inputs.iter();
    match inputs.next() {
        Some(FnArg::Receiver(receiver))
            if matches!(receiver.kind, syn::ReceiverKind::Reference(_, _, None)) => {}
        _ => {
            return Err(Error::new_spanned(
                signature,
                "a method of a service takes `&self`: several calls may run at once",
            ));
        }
    }
    let mut arguments = Vec::new();
    for input in inputs {
        let FnArg::Typed(typed) = input else { continue };
        let Pat::Ident(name) = &*typed.pat else {
            return Err(Error::new_spanned(&typed.pat, "an argument has a name"));
        };
        if let Type::Reference(reference) = &*typed.ty
            && let Some(lifetime) = &reference.lifetime
        {
            return Err(Error::new_spanned(
                lifetime,
                "an argument is lent for the call, and no longer: leave out its lifetime",
            ));
        }
        arguments.push((name.ident.clone(), (*typed.ty).clone()));
    }
    let result = match &signature.output {
        ReturnType::Default => syn::parse_quote!(()),
        ReturnType::Type(_, ty) => (**ty).clone(),
    };
    let mut found = Method {
        name: signature.ident.clone(),
        constant: format_ident!("METHOD_{index}"),
        docs: Vec::new(),
        cfgs: Vec::new(),
        arguments,
        carried: Vec::new(),
        fallible: fallible(&result),
        returned: names.prefix.clone(),
        result,
        asynchronous: signature.asyncness.is_some(),
        one_way: false,
        best_effort: false,
        unchecked: false,
    };
    let (own, others) = std::mem::take(&mut function.attrs)
        .into_iter()
        .partition::<Vec<_>, _>(|a| a.path().is_ident("rpc"));
    function.attrs = others;
    for attribute in own {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("one_way") {
                found.one_way = true;
            } else if meta.path.is_ident("best_effort") {
                found.best_effort = true;
            } else if meta.path.is_ident("no_checksum") {
                found.unchecked = true;
            } else {
                return Err(meta.error("one of `one_way`, `best_effort`, `no_checksum`"));
            }
            Ok(())
        })?;
    }
    if found.one_way && !matches!(function.sig.output, ReturnType::Default) {
        return Err(Error::new_spanned(
            &function.sig.output,
            "a one-way method returns nothing: nobody waits for it",
        ));
    }
    if found.asynchronous {
        // Runtimes move tasks between threads, and `async fn` would not promise that they may.
        let result = &found.result;
        function.sig.asyncness = None;
        function.sig.output = syn::parse_quote!(-> impl ::core::future::Future<Output = #result> + ::core::marker::Send);
    }
    let docs = function.attrs.iter().filter(|a| a.path().is_ident("doc"));
    found.docs = docs.cloned().collect();
    let cfgs = function.attrs.iter().filter(|a| a.path().is_ident("cfg"));
    found.cfgs = cfgs.cloned().collect();
    let carried = found.arguments.iter();
    found.carried = carried
        .map(|(_, ty)| names.of(ty, &found.cfgs, false))
        .collect();
    found.returned = names.of(&found.result, &found.cfgs, true);
    Ok(found)
}

/// A variable of ours.
fn ours(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// The two types of a `Result`.
fn fallible(ty: &Type) -> Option<(Type, Type)> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    if last.ident != "Result" {
        return None;
    }
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    let mut types = arguments.args.iter().filter_map(|a| match a {
        GenericArgument::Type(ty) => Some(ty.clone()),
        _ => None,
    });
    Some((types.next()?, types.next()?))
}

fn service(item: &ItemTrait, methods: &[Method]) -> TokenStream {
    let krate = quote!(::portolan::rpc);
    let (name, visibility) = (&item.ident, &item.vis);
    let text = name.unraw().to_string();
    let service = format_ident!("{}Service", name);
    let table = format_ident!("{}Methods", name);
    let served = format_ident!("__Served");
    let (method, call, result) = (ours("method"), ours("call"), ours("result"));
    let constants = methods.iter().map(|m| {
        let (constant, text) = (&m.constant, m.name.unraw().to_string());
        let (carried, returned) = (&m.carried, &m.returned);
        let (one_way, best_effort, unchecked) = (m.one_way, m.best_effort, m.unchecked);
        let cfgs = &m.cfgs;
        quote! {
            #(#cfgs)*
            const #constant: #krate::Method = #krate::Method::new(
                #text,
                #krate::Hash::new()
                    #(.word(#krate::carried::argument::<#carried>().0))*
                    .text("->")
                    .word(#krate::carried::result::<#returned>().0)
                    .finish(),
                false #(|| #krate::carried::argument::<#carried>().1)*
                    || #krate::carried::result::<#returned>().1,
            )
            .one_way(#one_way)
            .best_effort(#best_effort)
            .unchecked(#unchecked);
        }
    });
    // Not as a method of what is served, which may have others of that name.
    let run = |m: &Method| {
        let (function, names) = (&m.name, m.arguments.iter().map(|(n, _)| n));
        quote!(<#served as #name>::#function(&self.0, #(#names),*))
    };
    let all = methods.iter().map(|m| {
        let (constant, cfgs) = (&m.constant, &m.cfgs);
        quote!(#(#cfgs)* Self::#constant)
    });
    let arms = methods.iter().map(|m| {
        let constant = &m.constant;
        let names = m.arguments.iter().map(|(n, _)| n).collect::<Vec<_>>();
        let (carried, returned) = (&m.carried, &m.returned);
        let run = run(m);
        let run = if m.asynchronous {
            quote!(#krate::wait_for(#run)?)
        } else {
            run
        };
        let cfgs = &m.cfgs;
        quote! {
            #(#cfgs)*
            if #method == #table::#constant.id() {
                let (#(#krate::carried::Taken(#names),)*):
                    (#(#krate::carried::Taken<'_, #carried>,)*) = #call.arguments()?;
                return #call.returns(&#krate::carried::Told::<#returned>(&#run));
            }
        }
    });
    let asynchronous = methods.iter().filter(|m| m.asynchronous).map(|m| {
        let constant = &m.constant;
        let names = m.arguments.iter().map(|(n, _)| n).collect::<Vec<_>>();
        let (carried, returned) = (&m.carried, &m.returned);
        let run = run(m);
        let cfgs = &m.cfgs;
        quote! {
            #(#cfgs)*
            if #method == #table::#constant.id() {
                return ::core::result::Result::Ok(::std::boxed::Box::pin(async move {
                    let (#(#krate::carried::Taken(#names),)*):
                        (#(#krate::carried::Taken<'_, #carried>,)*) = #call.arguments()?;
                    let #result = #run.await;
                    #call.returns(&#krate::carried::Told::<#returned>(&#result))
                }));
            }
        }
    });
    let about = format!("Serves [`{name}`]: for `portolan::rpc::serve`.");
    quote! {
        #[doc(hidden)]
        #[allow(non_camel_case_types)]
        #visibility struct #table;

        #[allow(missing_docs)]
        impl #table {
            #(#constants)*
            const ALL: &'static [#krate::Method] = &[#(#all),*];
        }

        const _: () = assert!(
            #krate::Method::are_distinct(#table::ALL),
            "two methods of the service have one hash: rename one of them",
        );

        #[doc = #about]
        #[derive(Clone, Debug, Default)]
        #visibility struct #service<#served>(pub #served);

        impl<#served> #krate::Service for #service<#served>
        where
            #served: #name + ::core::marker::Send + ::core::marker::Sync + 'static,
        {
            const NAME: &'static str = #text;
            const METHODS: &'static [#krate::Method] = #table::ALL;

            #[allow(clippy::let_unit_value)]
            fn dispatch(
                &self,
                #method: u32,
                #call: &mut #krate::Dispatch<'_>,
            ) -> ::core::result::Result<(), #krate::NotDispatched> {
                #(#arms)*
                ::core::result::Result::Err(#krate::NotDispatched::UnknownMethod)
            }

            #[allow(clippy::let_unit_value)]
            fn dispatch_async(
                self: ::std::sync::Arc<Self>,
                #method: u32,
                #call: #krate::OwnedCall,
            ) -> ::core::result::Result<#krate::MethodFuture, #krate::OwnedCall> {
                #(#asynchronous)*
                let _ = #method;
                ::core::result::Result::Err(#call)
            }
        }
    }
}

fn client(item: &ItemTrait, methods: &[Method]) -> TokenStream {
    let krate = quote!(::portolan::rpc);
    let (name, visibility) = (&item.ident, &item.vis);
    let text = name.unraw().to_string();
    let client = format_ident!("{}Client", name);
    let table = format_ident!("{}Methods", name);
    let functions = methods.iter().map(|m| {
        let (constant, name, docs, cfgs) = (&m.constant, &m.name, &m.docs, &m.cfgs);
        let names = m.arguments.iter().map(|(n, _)| n).collect::<Vec<_>>();
        let types = m.arguments.iter().map(|(_, t)| t);
        let result = &m.result;
        let (carried, name_of) = (&m.carried, &m.returned);
        let given = ours("given");
        let lent = quote!((#(#krate::carried::Lent::<#carried>(&#names),)*));
        let call = quote! {
            let #krate::carried::Given::<#name_of>(#given) =
                self.stub.call(&#table::#constant, &#lent)?;
        };
        let (returned, body) = if m.one_way {
            (
                quote!(::core::result::Result<(), #krate::RpcError>),
                quote!(self.stub.post(&#table::#constant, &#lent)),
            )
        } else if let Some((fine, failed)) = &m.fallible {
            (
                quote!(::core::result::Result<#fine, #krate::CallError<#failed>>),
                quote! { #call #given.map_err(#krate::CallError::Method) },
            )
        } else {
            (
                quote!(::core::result::Result<#result, #krate::RpcError>),
                quote! { #call ::core::result::Result::Ok(#given) },
            )
        };
        let start = format_ident!("begin_{}", name);
        let types_again = m.arguments.iter().map(|(_, t)| t);
        let about = format!("Begins [`Self::{name}`], to wait for its result later.");
        let begin = (!m.one_way).then(|| {
            quote! {
                #(#cfgs)*
                #[doc = #about]
                #visibility fn #start(
                    &self,
                    #(#names: #types_again),*
                ) -> ::core::result::Result<#krate::Pending<#result>, #krate::RpcError> {
                    self.stub.begin(&#table::#constant, &#lent)
                }
            }
        });
        let awaited = format_ident!("{}_async", name);
        let types_again = m.arguments.iter().map(|(_, t)| t);
        let about = format!("As [`Self::{name}`], to be awaited.");
        let (future, wait) = match &m.fallible {
            Some((fine, failed)) => (
                quote! {
                    impl ::core::future::Future<
                        Output = ::core::result::Result<#fine, #krate::CallError<#failed>>,
                    > + ::core::marker::Send + use<>
                },
                quote! {
                    let #given: #krate::Awaited<#krate::carried::Given<#name_of>> = #given;
                    async move { #given.await?.0.map_err(#krate::CallError::Method) }
                },
            ),
            None => (quote!(#krate::Awaited<#result>), quote!(#given)),
        };
        quote! {
            #(#docs)*
            #(#cfgs)*
            #visibility fn #name(&self, #(#names: #types),*) -> #returned { #body }
            #begin
            #(#cfgs)*
            #[doc = #about]
            #visibility fn #awaited(&self, #(#names: #types_again),*) -> #future {
                let #given = self.stub.call_async(&#table::#constant, &#lent);
                #wait
            }
        }
    });
    let about = format!("Calls a [`{name}`] in another process.");
    quote! {
        #[doc = #about]
        #[derive(Clone)]
        #visibility struct #client {
            stub: #krate::Stub,
        }

        #[allow(missing_docs)]
        impl #client {
            /// Connects to the service that is served under `name`, waiting until there is one.
            #visibility fn connect(
                domain: &::portolan::Domain,
                name: &str,
                deadline: impl ::core::convert::Into<::portolan::Deadline>,
            ) -> ::core::result::Result<Self, #krate::ClientError> {
                Self::connect_with(domain, name, &#krate::ClientOptions::default(), deadline)
            }

            /// As `connect`, with options.
            #visibility fn connect_with(
                domain: &::portolan::Domain,
                name: &str,
                options: &#krate::ClientOptions,
                deadline: impl ::core::convert::Into<::portolan::Deadline>,
            ) -> ::core::result::Result<Self, #krate::ClientError> {
                let stub =
                    #krate::Stub::connect(domain, name, #text, #table::ALL, options, deadline.into())?;
                ::core::result::Result::Ok(Self { stub })
            }

            /// The same connection, with another time limit for each call.
            #[must_use]
            #visibility fn within(&self, limit: ::core::time::Duration) -> Self {
                Self { stub: self.stub.within(limit) }
            }

            /// The connection itself.
            #visibility fn stub(&self) -> &#krate::Stub {
                &self.stub
            }

            #(#functions)*
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_with_a_lifetime_is_refused() {
        let text = expand(syn::parse_quote!(
            trait Log {
                fn line(&self, text: &'static str);
            }
        ));
        let why = text.unwrap_err().to_string();
        assert!(why.contains("leave out its lifetime"), "{why}");
        assert!(
            expand(syn::parse_quote!(
                trait Log {
                    fn line(&self, text: &str);
                }
            ))
            .is_ok()
        );
    }
}
